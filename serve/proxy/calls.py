"""Which requests are calls of a model, and where a request goes."""

import re

from serve.doors.problem import Problem

# POSTs that call no model. All others are recorded: a call that is missing is worse than a record
# of something that was none.
_NO_CALL = re.compile(
    r"/(files|uploads|batches|models|fine_tuning|fine-tunes|vector_stores|assistants|containers"
    r"|count_tokens|evals|organization|skills|cachedcontents|corpora|tunedmodels)(/|$)"
    r"|/threads(/(?!runs$)[^/]+(/messages(/[^/]+)?)?)?$"
    r"|/responses/[^/]+/cancel$|/(realtime|conversations)(/|$)"
    r"|:(counttokens|batchgeneratecontent)$|/count-tokens$|^/upload/"
    r"|^/api/(pull|push|create|copy|show|delete|blobs)(/|$)"
)
# Gemini's and Bedrock's calls lie below /models/ and /model/.
_CALL = re.compile(
    r":(stream)?(generatecontent|generateanswer|rawpredict|predict|embedcontent)$"
    r"|:batchembedcontents$|/model/[^/]+/(converse|invoke)[^/]*$"
)
# A stream that is taken up again, which carries output. A poll is none: each would be a run.
_RESUMED = re.compile(r"/responses/[^/?]+/?\?(.*&)?stream=true(&|$)", re.I)


def is_call(method: str, target: str) -> bool:
    """Return whether a request calls a model, by its method and target."""
    if method == "GET":
        return _RESUMED.search(target) is not None
    route = target.partition("?")[0].lower().rstrip("/")
    if method != "POST":
        return False
    return _CALL.search(route) is not None or _NO_CALL.search(route) is None


def target_of(raw: str) -> str:
    """Return path and query of a request target, whatever host it names.

    A target in absolute form (RFC 9112, section 3.2.2) may name any host: it goes where every
    request goes.

    Raises:
        Problem: 400, it has no path.
    """
    if not raw.startswith("/"):
        scheme, mark, rest = raw.partition("://")
        if not mark or scheme.lower() not in ("http", "https"):
            raise Problem(400, "target", "the request has no path")
        _, slash, path = rest.partition("/")
        raw = slash + path if slash else "/"
    return raw.partition("#")[0]

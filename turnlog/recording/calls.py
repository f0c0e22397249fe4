"""Which calls of a provider's API are model calls: those become runs, all others only pass."""

import re

_ROUTES = re.compile(
    r"""/(
        (chat/)?completions | responses | embeddings | moderations
      | images/(generations|edits|variations)
      | audio/(speech|transcriptions|translations)
      | complete
      | model/[^/]+/(invoke|invoke-with-response-stream|converse|converse-stream)
      | v\d/(chat|embed|rerank)
      | api/(chat|generate|embed|embeddings)
    )$
    | (^|/v\d[^/]*)/messages$
    | :((stream)?(generatecontent|rawpredict)|(batch)?embedcontents?|predict)$""",
    re.IGNORECASE | re.VERBOSE,
)


def is_model_call(method: str, path: str) -> bool:
    """Say whether a request asks a model for something.

    Counting tokens, files, lists of models, polled and resumed responses are none: what they would
    add to a log is there already, or is free.

    Args:
        method: HTTP method.
        path: path of the address; a query does not matter.
    """
    route = path.partition("?")[0].rstrip("/")
    return method.upper() == "POST" and _ROUTES.search(route) is not None

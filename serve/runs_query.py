"""The query behind `turnlog runs`: states from `runs`, sums from `usage`, places from `locator`.

Order exists only within one topic, so no table is written from two; they are joined here, by run
and by coordinate, in one query however many runs there are.
"""

from collections.abc import Mapping
from typing import Any

from processors.runs import CREATED, FINAL_AFTER_MS, TAKEN_OVER, TERMINAL
from processors.runs import TOPIC as RUNS_TOPIC
from processors.usage import CLASSES, KNOWN_QUALITIES


def runs_query(
    database: str,
    org: str,
    *,
    run: str | None = None,
    project: str | None = None,
    status: str | None = None,
    limit: int | None = None,
) -> tuple[str, dict[str, Any]]:
    """Return the query for the runs of an org, newest first, and its parameters.

    Args:
        database: where the three tables are.
        org: whose runs.
        run: only this one.
        project: only those of this project.
        status: only those in this state.
        limit: at most so many.

    Returns:
        SQL whose rows are `(run, source_ref, conversation, provider, model, status, started_us,
        ended_us, request place, response place, quality, cost, reason, *token classes)`, where a
        place is `(partition, offset, has content, object, frame offset, frame bytes)`, the object
        empty while the locator does not have the event.
    """
    given = {"run": run, "project": project, "status": status, "limit": limit}
    parameters = {name: value for name, value in given.items() if value is not None}
    sql = _SELECT.format(
        runs=_RUNS.format(database=database, narrowed=_narrowed(parameters, "run", "project")),
        usage=_USAGE.format(database=database, narrowed=_narrowed(parameters, "run", "project")),
        located=_LOCATED.format(database=database, narrowed=_narrowed(parameters, "run")),
        having="WHERE status = {status:String}" if status is not None else "",
        limit="LIMIT {limit:UInt64}" if limit is not None else "",
    )
    return sql, parameters | {"org": org}


def ended_query(database: str, org: str, conversation: str) -> tuple[str, dict[str, Any]]:
    """Return the query for how the runs of a conversation ended, and its parameters.

    Returns:
        SQL whose rows are `(run, (status, partition, offset, has content))` of the terminal events
        that count; runs that have not ended are left out.
    """
    parameters = {"conversation": conversation}
    runs = _RUNS.format(database=database, narrowed=_narrowed(parameters, "conversation"))
    return _ENDED.format(runs=runs), parameters | {"org": org}


def _narrowed(parameters: Mapping[str, Any], *names: str) -> str:
    return "".join(f" AND {name} = {{{name}:String}}" for name in names if name in parameters)


def _listed(*names: str) -> str:
    return ", ".join(f"'{name}'" for name in names)


_KNOWN = f"quality IN ({_listed(*KNOWN_QUALITIES)})"
_SUMS = ", ".join(f"sumIf(sign * {name}, {_KNOWN}) AS {name}" for name in CLASSES)

# The state of a run is that of its terminal event with the highest epoch and seq. The finalizer's
# is provisional and has the highest seq there is: one of the same writer supersedes it within 7
# days. Who took the run over owns it: an end of a lower epoch is refused (`processors.runs.fold`
# says the same event by event). The first run.created wins. An event that stands twice in the log
# stands once in the table. One that says another user, conversation or key locator than the run
# began with is a conflict: a run has one key each for its request and its output, and what a second
# one sealed is never read.
_IDENTITY = "(user, conversation, key_tree, key_day, key_gen)"
_RUNS = f"""
    SELECT run, if(asked.8.4 = 0, max(conversation), asked.8.2) AS talk,
        argMinIf(
            (partition, offset, notEmpty(content_mac), occurred_at_us, provider, model, source_ref,
                {_IDENTITY}),
            (partition, offset), type = '{CREATED}') AS asked,
        groupArrayIf(
            ((writer_epoch, NOT provisional, seq, -offset),
                (partition, offset, notEmpty(content_mac), occurred_at_us, provider, model, status),
                {_IDENTITY}, append_us), type IN ({_listed(*TERMINAL)})) AS ends,
        maxIf(writer_epoch, type = '{TAKEN_OVER}') AS owner,
        arraySort(arrayFilter(end -> end.1.1 >= owner
            AND (end.3 = asked.8 OR 0 IN (asked.8.4, end.3.4))
            AND NOT arrayExists(cut -> cut.1.1 = end.1.1 AND NOT cut.1.2 AND end.1.2
                AND end.4 > cut.4 + {FINAL_AFTER_MS * 1000}, ends), ends))[-1].2 AS ended
    FROM {{database}}.runs
    WHERE org = {{{{org:String}}}}{{narrowed}}
        AND type IN ({_listed(CREATED, TAKEN_OVER, *TERMINAL)})
    GROUP BY run"""

_ENDED = """
SELECT run, (ended.7, ended.1, ended.2, ended.3)
FROM ({runs})
WHERE ended.7 != ''"""

# A price that is not known makes the sum unknown, unless its event was undone: it would be too low.
_USAGE = f"""
    SELECT run, count() AS events,
        multiIf(sumIf(sign, quality = 'measured') > 0, 'measured',
            sumIf(sign, quality = 'estimated') > 0, 'estimated', 'unknown') AS known,
        if(sumIf(sign, {_KNOWN} AND isNull(cost_nano_usd)) != 0, NULL,
            sumIf(sign * cost_nano_usd, {_KNOWN})) AS cost,
        maxIf(reason, quality = 'unknown') AS unread,
        if(unread = '', maxIf(reason, sign = -1), unread) AS why, {_SUMS}
    FROM {{database}}.usage
    WHERE org = {{{{org:String}}}}{{narrowed}} AND type IN ('usage.recorded', 'usage.corrected')
    GROUP BY run"""

_LOCATED = f"""
    SELECT partition, offset, object, frame_offset, frame_bytes
    FROM {{database}}.locator
    WHERE org = {{{{org:String}}}}{{narrowed}} AND topic = '{RUNS_TOPIC}'
        AND type IN ({_listed(CREATED, *TERMINAL)})"""

_SELECT = f"""
SELECT r.run, asked.7, talk,
    if(ended.5 = '', asked.5, ended.5),
    if(ended.6 = '', asked.6, ended.6),
    if(ended.7 = '', 'running', ended.7) AS status,
    asked.4, ended.4,
    (asked.1, asked.2, asked.3, q.object, q.frame_offset, q.frame_bytes),
    (ended.1, ended.2, ended.3, o.object, o.frame_offset, o.frame_bytes),
    if(u.events = 0, 'unknown', u.known), if(u.events = 0, NULL, u.cost),
    if(u.events = 0, 'not_recorded', u.why), {", ".join(CLASSES)}
FROM ({{runs}}) AS r
LEFT JOIN ({{usage}}) AS u ON u.run = r.run
LEFT ANY JOIN ({{located}}) AS q ON q.partition = asked.1 AND q.offset = asked.2
LEFT ANY JOIN ({{located}}) AS o ON o.partition = ended.1 AND o.offset = ended.2
{{having}}
ORDER BY asked.4 DESC, r.run DESC
{{limit}}
"""

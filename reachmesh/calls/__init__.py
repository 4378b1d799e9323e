"""Calls as pure state machines: the ones this node makes, the ones it serves, and the credit their streams run on.

The policies of `resilience/` and `routing/` stand around a call in one order, the same for call, submit, stream and channel. From the
outside in, each with the reason for its place:

====================  ====================================================================================================
where this node calls
----------------------------------------------------------------------------------------------------------------------------
fallback              outermost: it stands in for the failure of all that follows, whatever that tried (`node/future`, `node/stream`)
middleware            sees one call, not its attempts, and the failure that a fallback would hide (`node/middleware`)
user's choice         predicate and strategy are asked before the engine is, for nothing of the user's runs inside it (`node/reach`)
deadline              outside the retries: no number of attempts stretches it, and nested calls inherit what is left (`caller`)
retry and throttle    outside routing: another attempt is another pick. A retry below a retry is not made, so chains do not multiply
time of a try, hedge  inside the retry, which pays for them from the same throttle; only where running twice does no harm
session, strategy     chooses among those whom the filters let through
window, pressure      a full instance is passed over only while another is not; low priority is held back here before it is sent
breaker               inside the retry, so that each attempt counts once, for its own instance; outside the link, so that a dead link
                      counts too. Cancels, bad requests, quotas and draining say nothing about the instance and are not counted
link                  innermost: only what was surely not sent, or surely not run, may be sent again without asking for more
--------------------  ----------------------------------------------------------------------------------------------------
where this node serves
----------------------------------------------------------------------------------------------------------------------------
identity, depth,      first and from the header alone: the wrong boot, a loop, a stranger, a version, an expired request cost nothing
access, version
watermark             before the body is kept: what would not be served in time is refused while it is small
dedup                 before cache and permits: a repetition takes no place, and joins what runs (`runs`)
cache                 before the permits: an answer that is there needs none
permits               the handler's, not the call's: one that runs on after its caller left keeps its place (`admission`)
priority              at the permits' line and at the pool: whoever waits, waits by class
deadline, cancel      the claim is one ticket: either the handler begins or the call ends without it, never both (`incoming`)
middleware            in the handler's thread, around the handler alone (`node/served`)
====================  ====================================================================================================

Streams are tried again only before their first item, and what a caller streams in is never kept for another try.
Only one policy counts a failure: the router, once per attempt; breaker, weight and latency all learn from that one report.
"""

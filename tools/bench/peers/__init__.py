"""The peers, one file each, and the list of their variants."""

from __future__ import annotations

from tools.bench.interface import Variant

NO_ROUTING = "no routing, no membership"

VARIANTS = (
    Variant("raw", "raw", "RawServer", "RawClient", ("pyzmq",), "the receiving loop", "the floor: two parts, no RPC at all"),
    Variant(
        "reachmesh-inline", "mesh", "MeshServer", "MeshClient", ("pyzmq",), "the receiving loop", options={"domain": "inline"}
    ),
    Variant("reachmesh-loop", "mesh", "MeshServer", "MeshClient", ("pyzmq",), "event loop", options={"domain": "loop"}),
    Variant("reachmesh-pool", "mesh", "MeshServer", "MeshClient", ("pyzmq",), "thread pool", options={"domain": "pool"}),
    Variant(
        "reachmesh-curve", "mesh", "MeshServer", "MeshClient", ("pyzmq",), "the receiving loop", "encrypted and authenticated",
        options={"domain": "inline", "secret": "a secret for the benchmark only"},
    ),
    Variant("grpc-aio", "grpc_peer", "AioServer", "AioClient", ("grpcio",), "event loop", NO_ROUTING),
    Variant("grpc-sync", "grpc_peer", "SyncServer", "SyncClient", ("grpcio",), "thread pool", NO_ROUTING),
    Variant(
        "nats", "nats_peer", "NatsServer", "NatsClient", ("nats-py",), "event loop", "through a broker; streams without flow control",
        programs=("nats-server",),
    ),
    Variant("zenoh", "zenoh_peer", "ZenohServer", "ZenohClient", ("eclipse-zenoh",), "its own thread", "consolidation off; no breaker, no retry"),
    Variant("zerorpc", "zerorpc_peer", "ZerorpcServer", "ZerorpcClient", ("zerorpc",), "greenlet", f"gevent; {NO_ROUTING}"),
    Variant("pyro5", "pyro_peer", "PyroServer", "PyroClient", ("Pyro5", "msgpack"), "thread a connection", f"a round trip an item; {NO_ROUTING}"),
    Variant("rpyc", "rpyc_peer", "RpycServer", "RpycClient", ("rpyc",), "thread a connection", f"streams pulled in batches of 100 to 1,000: the first item waits for its batch; {NO_ROUTING}"),
    Variant(
        "openagentmesh", "oam_peer", "OamServer", "OamClient", ("openagentmesh",), "event loop", "through nats-server; JSON text, not bytes",
        programs=("nats-server",),
    ),
)  # fmt: skip
"""`raw` comes first: it is the floor that every ratio refers to."""

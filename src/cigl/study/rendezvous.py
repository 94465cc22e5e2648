"""Where the ranks of a study's run meet: the study keeps the store, as torchrun does, so that it outlives each rank."""

from __future__ import annotations


class Rendezvous:
    """For ``size`` processes that are told by the environment, as torchrun tells them."""

    def __init__(self, size: int, host: str = "127.0.0.1"):
        self._size, self._host, self._port = size, host, 0
        if size > 1:
            from torch.distributed import TCPStore  # type: ignore[attr-defined]  # as the documentation has it

            self._store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
            self._port = self._store.port

    def variables(self, rank: int, on_node: int) -> dict[str, str]:
        """The environment of one of them."""
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(self._size),
            "LOCAL_RANK": str(on_node),
            "MASTER_ADDR": self._host,
            "MASTER_PORT": str(self._port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is kept elsewhere
        }

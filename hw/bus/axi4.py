"""AXI4 (AMBA IHI 0022, AXI4 full) as five streams with one payload layout each.

A channel's valid, ready and payload signals follow the rules of `amaranth.lib.stream`, which are AXI's own. Sizes, bursts and
responses are coded as in the specification.
"""

from amaranth.hdl import unsigned
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Axi4Signature", "Burst", "Feature", "Response"]


class Feature(enum.Enum):
    """Parts of AXI4 that a port may have. READ and WRITE select channels, the others add address-channel fields."""

    READ = "read"
    WRITE = "write"
    LOCK = "lock"
    CACHE = "cache"
    PROT = "prot"
    QOS = "qos"
    REGION = "region"


class Burst(enum.IntEnum, shape=2):
    """AxBURST codes."""

    FIXED = 0
    INCR = 1
    WRAP = 2


class Response(enum.IntEnum, shape=2):
    """RRESP and BRESP codes."""

    OKAY = 0
    EXOKAY = 1
    SLVERR = 2
    DECERR = 3


_OPTIONAL = {
    Feature.LOCK: ("lock", 1),
    Feature.CACHE: ("cache", 4),
    Feature.PROT: ("prot", 3),
    Feature.QOS: ("qos", 4),
    Feature.REGION: ("region", 4),
}


class Axi4Signature(wiring.Signature):
    """An AXI4 port, from the manager's point of view.

    Parameters
    ----------
    address_bits : int
        Width of addresses, 12 to 64 bits.
    data_bits : int
        Width of the data bus: 8, 16, ... 1024 bits.
    id_bits : int
        Width of transaction ids, 0 to 32 bits.
    user_bits : int
        Width of the user field of the address channels, 0 to 64 bits.
    features : iterable of Feature
        At least one of READ and WRITE.

    Members
    -------
    ar : Out(stream)
        With READ. Payload ``id, addr, len, size, burst``, then optional fields, then ``user``.
    r : In(stream)
        With READ. Payload ``id, data, resp, last``.
    aw : Out(stream)
        With WRITE. Payload as `ar`.
    w : Out(stream)
        With WRITE. Payload ``data, strb, last``.
    b : In(stream)
        With WRITE. Payload ``id, resp``.
    """

    def __init__(self, *, address_bits, data_bits, id_bits, user_bits=0, features=(Feature.READ,)):
        if not isinstance(address_bits, int) or not 12 <= address_bits <= 64:
            raise ValueError(f"AXI4 address width must be 12 to 64 bits, not {address_bits!r}")
        if data_bits not in (8, 16, 32, 64, 128, 256, 512, 1024):
            raise ValueError(
                f"AXI4 data width must be a power of two from 8 to 1024 bits, not {data_bits!r}"
            )
        if not isinstance(id_bits, int) or not 0 <= id_bits <= 32:
            raise ValueError(f"AXI4 id width must be 0 to 32 bits, not {id_bits!r}")
        if not isinstance(user_bits, int) or not 0 <= user_bits <= 64:
            raise ValueError(f"AXI4 user width must be 0 to 64 bits, not {user_bits!r}")
        features = frozenset(features)
        for feature in features:
            if not isinstance(feature, Feature):
                raise TypeError(f"AXI4 features must be members of Feature, not {feature!r}")
        if not features & {Feature.READ, Feature.WRITE}:
            raise ValueError("AXI4 features must contain READ or WRITE")
        self._address_bits = address_bits
        self._data_bits = data_bits
        self._id_bits = id_bits
        self._user_bits = user_bits
        self._features = features

        address = {
            "id": unsigned(id_bits),
            "addr": unsigned(address_bits),
            "len": unsigned(8),
            "size": unsigned(3),
            "burst": Burst,
        }
        for feature, (name, width) in _OPTIONAL.items():
            if feature in features:
                address[name] = unsigned(width)
        if user_bits:
            address["user"] = unsigned(user_bits)
        members = {}
        if Feature.READ in features:
            members["ar"] = Out(stream.Signature(data.StructLayout(address)))
            members["r"] = In(
                stream.Signature(
                    data.StructLayout(
                        {
                            "id": unsigned(id_bits),
                            "data": unsigned(data_bits),
                            "resp": Response,
                            "last": unsigned(1),
                        }
                    )
                )
            )
        if Feature.WRITE in features:
            members["aw"] = Out(stream.Signature(data.StructLayout(address)))
            members["w"] = Out(
                stream.Signature(
                    data.StructLayout(
                        {
                            "data": unsigned(data_bits),
                            "strb": unsigned(data_bits // 8),
                            "last": unsigned(1),
                        }
                    )
                )
            )
            members["b"] = In(
                stream.Signature(data.StructLayout({"id": unsigned(id_bits), "resp": Response}))
            )
        super().__init__(members)

    @property
    def address_bits(self) -> int:
        """Width of addresses in bits."""
        return self._address_bits

    @property
    def data_bits(self) -> int:
        """Width of the data bus in bits."""
        return self._data_bits

    @property
    def id_bits(self) -> int:
        """Width of transaction ids in bits."""
        return self._id_bits

    @property
    def user_bits(self) -> int:
        """Width of the user field of the address channels in bits."""
        return self._user_bits

    @property
    def features(self) -> frozenset:
        """Parts of AXI4 that the port has."""
        return self._features

    def __eq__(self, other):
        return (
            type(self) is type(other)
            and self._address_bits == other._address_bits
            and self._data_bits == other._data_bits
            and self._id_bits == other._id_bits
            and self._user_bits == other._user_bits
            and self._features == other._features
        )

    def __repr__(self):
        names = ", ".join(sorted(f.name for f in self._features))
        return (
            f"Axi4Signature(address_bits={self._address_bits}, data_bits={self._data_bits}, "
            f"id_bits={self._id_bits}, user_bits={self._user_bits}, features={{{names}}})"
        )

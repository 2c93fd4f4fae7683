"""Functions that plans show as Java methods, and functions whose results depend on the JVM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpujoin.cache import cached_by_life
from gpujoin.model.expressions import Expression, Function, Literal
from gpujoin.spark.catalyst.nodes import Node

if TYPE_CHECKING:
    from gpujoin.spark.jvm.gateway import JvmNames

_METHODS: dict[str, dict[str, Function]] = {
    "contains": {"ByteArrayMethods": Function.CONTAINS},
    "startsWith": {"ByteArrayMethods": Function.STARTS_WITH},
    "endsWith": {"ByteArrayMethods": Function.ENDS_WITH},
    "encode": {"Encode": Function.ENCODE, "Base64": Function.BASE64, "UrlCodec": Function.URL_ENCODE},
    "decode": {"StringDecode": Function.DECODE, "UrlCodec": Function.URL_DECODE},
    "isLuhnNumber": {"ExpressionImplUtils": Function.LUHN_CHECK},
    "quote": {"ExpressionImplUtils": Function.QUOTE},
    "bitmapBitPosition": {"BitmapExpressionUtils": Function.BITMAP_BIT_POSITION},
    "bitmapBucketNumber": {"BitmapExpressionUtils": Function.BITMAP_BUCKET_NUMBER},
}
"""Functions by the method, and then by the class, that Spark calls for them."""
_OF_TWO = frozenset({
    Function.CONTAINS, Function.STARTS_WITH, Function.ENDS_WITH, Function.ENCODE, Function.DECODE,
})  # fmt: skip
_WITH_TRUE = frozenset({Function.URL_DECODE, Function.BASE64})
"""Functions whose settings are usually true: to fail for malformed text, and to write lines of 76 characters."""
_FDLIBM_VERSIONS = range(17, 24)
_HOTSPOT = ("OpenJDK", "HotSpot")


def function_of(node: Node) -> Function | None:
    """Give the function that a ``StaticInvoke`` stands for; ``None`` if it is unknown."""
    methods = _METHODS.get(str(node.fields["functionName"]))
    if methods is None:
        return None
    return methods.get(str(node.jvm.staticObject().getName()).rpartition(".")[2].rstrip("$"))


def without_settings(function: Function, operands: Sequence[Expression]) -> list[Expression] | None:
    """Give the operands without settings; ``None`` if a setting has an unusual value."""
    count = 2 if function in _OF_TWO else 1
    for setting in operands[count:]:
        if not isinstance(setting, Literal) or setting.value not in (function in _WITH_TRUE, "UTF-8"):
            return None
    return list(operands[:count])


def fails_on_malformed_urls(node: Node) -> bool | None:
    """Tell whether a ``parse_url`` raises for malformed URLs; ``None`` for any other ``Invoke``."""
    if not str(node.fields.get("@called")).endswith(".ParseUrlEvaluator"):
        return None
    return bool(node.jvm.targetObject().value().failOnError())


@cached_by_life
def other_than_strict(gateway: JvmNames) -> str | None:
    """Why ``Math`` may give other values than ``StrictMath`` where HotSpot of Java 17 to 23 does not."""
    names = ("java.specification.version", "java.vm.name")
    version, machine = (str(gateway.java.lang.System.getProperty(name)) for name in names)
    if version.isdigit() and int(version) in _FDLIBM_VERSIONS and any(name in machine for name in _HOTSPOT):
        return None
    return f"its last bits are not known of {machine} of Java {version}"

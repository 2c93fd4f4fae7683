"""Finds joins that evaluate every pair of rows, and refuses or warns of those with too many pairs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpujoin.errors import ProductSizeError
from gpujoin.model.relations import Join, Relation, SparkSource
from gpujoin.plan.estimates import Sizes
from gpujoin.plan.ranges import Shape, shape_of_node


@dataclass(frozen=True)
class Product:
    """The pairs of a join without keys or ranges."""

    left: float
    right: float
    """Estimated rows of the sides."""

    @property
    def pairs(self) -> float:
        """Number of pairs."""
        return self.left * self.right

    def __str__(self) -> str:
        return f"about {self.left:.0f} × {self.right:.0f} rows without keys or ranges are {self.pairs:.3g} pairs"


def products_in(relation: Relation, sizes: Sizes) -> Iterator[Product]:
    """Products in a tree, parents first, but for those of sides of which nothing is known."""
    for node in relation.walk():
        if not isinstance(node, Join) or shape_of_node(node) is not Shape.PRODUCT:
            continue
        if not any(isinstance(below, SparkSource) and below.guessed for below in node.walk()):
            yield Product(sizes.of(node.left).rows, sizes.of(node.right).rows)


def refuse_products(products: Iterable[Product], most: int | None) -> None:
    """Raise ``ProductSizeError`` for a product of more pairs than ``spark.gpujoin.maxProductRows``."""
    for product in products:
        if most is not None and product.pairs > most:
            raise ProductSizeError(
                f"{product}, more than spark.gpujoin.maxProductRows ({most}); add an equality or a comparison by"
                " order, or raise the setting"
            )


def product_warnings(products: Iterable[Product], most: int | None) -> tuple[str, ...]:
    """A warning for each product of more pairs than ``spark.gpujoin.warnProductRows``."""
    return tuple(str(product) for product in products if most is not None and product.pairs > most)

"""Relations whose columns are known by identity, on which the planner and rewrites work.

Nodes refer to the columns of their inputs by position. So a rewrite that leaves out a column, or adds one, would have
to number anew what is above. Here a column has an identity, which it keeps wherever a node passes it on, and a node is
put over other inputs by asking where its columns are now::

    project a + d           by position   identities      over inputs without b, c   by position
      filter d > 2          0 + 2         a + d                                      0 + 1
        join on b = c       2             d > 2                                      1
          scan a, b         1 = 0         b = c           where late keys, exchanges or another aggregation
          scan c, d                                       have taken their place

Relations stay bound to positions, in which the engine runs them: some rewrites are made by the engine, which has what
they depend on. Identities are given to a tree when it is rewritten (:class:`ColumnTree`), or are those of Spark's plan
(`gpujoin.spark.query.trees`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, Self, TypeVar

from gpujoin.model.expressions import Attribute, ColumnId, ColumnRef, Expression
from gpujoin.model.jointype import Side
from gpujoin.model.relations import (
    Explode,
    Filter,
    Join,
    Limit,
    Output,
    PartialAggregate,
    Project,
    PythonAggregate,
    PythonCalls,
    PythonCogroups,
    PythonRows,
    PythonWindow,
    Relation,
    TopN,
    Union,
    Window,
    column,
)
from gpujoin.plan.remap import remapped, remapped_output, remapped_spec

Id = TypeVar("Id", bound=Hashable)


@dataclass(frozen=True, eq=False)
class Fragment(Generic[Id]):
    """A relation, and where in its output each column is."""

    relation: Relation
    """The relation that computes it."""
    positions: Mapping[Id, int]
    """Position of each column, by its identity."""

    @classmethod
    def from_columns(cls, relation: Relation, ids: Iterable[Id | None]) -> Fragment[Id]:
        """Give the columns of a relation their identities, in order; ``None`` is one that nothing refers to."""
        return Fragment(relation, {id_: n for n, id_ in enumerate(ids) if id_ is not None})

    def reference(self, id_: Id, side: Side = Side.LEFT) -> ColumnRef:
        """Refer to a column."""
        at = self.positions[id_]
        field = self.relation.schema.field(at)
        return ColumnRef(side=side, name=field.name, index=at, type=field.type)

    def under(self, relation: Relation) -> Fragment[Id]:
        """The columns of a relation over this one that passes all of them on."""
        return Fragment(relation, self.positions)

    def select(self, ids: Iterable[Id]) -> Fragment[Id]:
        """The same rows with some columns, in their order."""
        unique_ids = list(dict.fromkeys(ids))
        places, schema = [self.positions[id_] for id_ in unique_ids], self.relation.schema
        relation = self.relation
        if places != list(range(len(schema))):
            outputs = (Output(schema.field(n).name, column(schema, n), schema.field(n).nullable) for n in places)
            relation = Project(relation, tuple(outputs))
        return Fragment.from_columns(relation, unique_ids)


@dataclass(frozen=True, eq=False)
class ColumnTree(Fragment[ColumnId]):
    """A node of a tree, with identities for its columns and for those of all nodes below."""

    ids: tuple[ColumnId, ...]
    """Identities of its columns; a column that is passed on twice has one."""
    inputs: tuple[ColumnTree, ...]

    @classmethod
    def from_relation(cls, relation: Relation) -> Self:
        """Give the columns of a tree identities."""
        inputs = tuple(map(cls.from_relation, relation.children))
        ids = _identities(relation, inputs)
        return cls(relation, positions(ids), ids, inputs)

    def side(self, side: Side) -> ColumnTree:
        """One of the inputs of a join."""
        return self.inputs[0] if side is Side.LEFT else self.inputs[1]

    def at(self, places: Iterable[int]) -> frozenset[ColumnId]:
        """The columns at some positions."""
        return frozenset(self.ids[n] for n in places)

    def named(self, expression: Expression) -> Expression:
        """Write an expression over the columns of this node by their identities."""
        if isinstance(expression, ColumnRef):
            id_ = self.ids[expression.index]
            return Attribute(id=id_, name=expression.name, type=expression.type, written=expression.written)
        children = expression.children
        return expression.with_children(list(map(self.named, children))) if children else expression

    def read_by(self, expressions: Iterable[Expression], side: Side = Side.LEFT) -> frozenset[ColumnId]:
        """Give this node's columns that expressions over one of its sides read."""
        return frozenset(
            self.ids[ref.index] for value in expressions for ref in value.columns() if ref.side is side
        )  # fmt: skip

    @cached_property
    def computed(self) -> Mapping[ColumnId, Expression]:
        """What a projection computes, over the identities of its input's columns."""
        if not isinstance(self.relation, Project):
            return {}
        (child,) = self.inputs
        named = zip(self.ids, self.relation.outputs, strict=True)
        return {id_: child.named(output.expression) for id_, output in named if id_ not in child.positions}

    def reads(self, required: frozenset[ColumnId]) -> tuple[frozenset[ColumnId], ...]:
        """The columns of each input that the node reads to give the required ones."""
        node = self.relation
        match node:
            case Join():
                return tuple(self._join_columns(side, required) for side in Side)
            case Union():
                places = [n for n, id_ in enumerate(self.ids) if id_ in required]
                return tuple(frozenset(child.ids[n] for n in places) for child in self.inputs)
            case Project():
                values = [self.computed[id_] for id_ in required if id_ in self.computed]
                return ((required - self.computed.keys()) | attributes(values),)
            case Window():
                columns = node.partition
            case Explode():
                columns = (node.column,)
            case PythonRows() | PythonAggregate() | PythonCogroups() | PythonWindow():
                columns = tuple(range(len(node.child.schema)))
            case _:
                columns = ()
        return tuple(
            child.at(columns) | child.read_by(node.expressions()) | (required & child.positions.keys())
            for child in self.inputs
        )

    def _join_columns(self, side: Side, required: frozenset[ColumnId]) -> frozenset[ColumnId]:
        """Give the columns of one side of a join that it compares, or returns and are required."""
        assert isinstance(self.relation, Join)
        child, spec = self.side(side), self.relation.spec
        compared = [pair.of(side) for pair in spec.keys]
        if spec.as_of is not None:
            compared.append(spec.as_of.left if side is Side.LEFT else spec.as_of.right)
        output = required.intersection(child.ids[n] for n in spec.output_of(side))
        return output.union((child.ids[n] for n in compared), child.read_by(self.relation.expressions(), side))

    def over(
        self, inputs: Sequence[Fragment[ColumnId]], required: frozenset[ColumnId] | None = None
    ) -> Fragment[ColumnId]:
        """Put the node over other inputs, which have the columns that it reads.

        Without ``required`` it gives the columns that it gave. With it, a projection or a join gives the required ones
        alone, be they its own or columns of an input, and a filter passes on whatever its input has.
        """
        places = [
            {n: new.positions[id_] for n, id_ in enumerate(old.ids) if id_ in new.positions}
            for old, new in zip(self.inputs, inputs, strict=True)
        ]
        node, children = self.relation, [each.relation for each in inputs]
        same = all(
            len(new.relation.schema) == len(old.ids) and new.positions == old.positions
            for old, new in zip(self.inputs, inputs, strict=True)
        )
        if same and required is None:
            return Fragment(node.with_children(children), self.positions)
        match node:
            case Project():
                return self._projected(node, inputs[0], places[0], required)
            case Join():
                return self._joined(node, inputs, places, required)
            case Filter():
                return inputs[0].under(Filter(children[0], remapped(node.condition, places[0])))
            case PartialAggregate():
                keys = tuple(remapped_output(key, places[0]) for key in node.keys)
                calls = tuple(call.mapped(lambda value: remapped(value, places[0])) for call in node.aggregates)
                return self.under(dataclasses.replace(node, child=children[0], keys=keys, aggregates=calls))
            case PythonRows() | PythonAggregate() | PythonCogroups() | PythonWindow():
                ids = self.inputs[0].ids
                if len(set(ids)) < len(ids):
                    raise AssertionError(f"{type(node).__name__} over a column that it is given twice")
                selected = inputs[0].select(ids)
                return self.under(dataclasses.replace(node, child=selected.relation))
            case PythonCalls():
                return self._with_results(node, inputs[0], places[0])
        raise AssertionError(f"{type(node).__name__} over an input with other columns")

    def _with_results(
        self, node: PythonCalls, child: Fragment[ColumnId], places: Mapping[int, int]
    ) -> Fragment[ColumnId]:
        """Put calls of functions over another input, all of whose columns they pass on."""
        calls = dataclasses.replace(
            node, child=child.relation, inputs=tuple(remapped_output(value, places) for value in node.inputs)
        )
        own = zip(self.ids[-len(node.calls) :], range(len(child.relation.schema), len(calls.schema)), strict=True)
        return Fragment(calls, {**child.positions, **dict(own)})

    def _projected(
        self, node: Project, child: Fragment[ColumnId], places: Mapping[int, int], required: frozenset[ColumnId] | None
    ) -> Fragment[ColumnId]:
        named = list(zip(self.ids, node.outputs, strict=True))
        if required is None:
            outputs = tuple(remapped_output(output, places) for _, output in named)
            return Fragment(Project(child.relation, outputs), self.positions)
        by_id = {id_: remapped_output(output, places) for id_, output in named if id_ in required}
        for id_ in required - by_id.keys():
            field = child.relation.schema.field(child.positions[id_])
            by_id[id_] = Output(field.name, child.reference(id_), field.nullable)
        return Fragment(Project(child.relation, tuple(by_id.values())), positions(by_id))

    def _joined(
        self,
        node: Join,
        inputs: Sequence[Fragment[ColumnId]],
        places: Sequence[Mapping[int, int]],
        required: frozenset[ColumnId] | None,
    ) -> Fragment[ColumnId]:
        ids: list[ColumnId] = []
        outputs = []
        for side, new in zip(Side, inputs, strict=True):
            own = [self.side(side).ids[n] for n in node.spec.output_of(side)]
            if required is not None:
                others = (id_ for id_ in new.positions if id_ in required and id_ not in self.positions)
                own = [*(id_ for id_ in own if id_ in required), *others]
            outputs.append(tuple(new.positions[id_] for id_ in own))
            ids += own
        ids += self.ids[len(node.schema) - 1 :] if node.spec.join_type.flags_rows else ()
        spec = dataclasses.replace(node.spec, left_output=(), right_output=())
        spec = dataclasses.replace(
            remapped_spec(spec, dict(zip(Side, places, strict=True))), left_output=outputs[0], right_output=outputs[1]
        )
        left, right = (each.relation for each in inputs)
        return Fragment(dataclasses.replace(node, left=left, right=right, spec=spec), positions(ids))


def positions(ids: Iterable[ColumnId]) -> dict[ColumnId, int]:
    """Give the position of each column, the first of several."""
    places: dict[ColumnId, int] = {}
    for n, id_ in enumerate(ids):
        places.setdefault(id_, n)
    return places


def attributes(expressions: Iterable[Expression]) -> frozenset[ColumnId]:
    """The columns that expressions over identities read."""
    return frozenset(node.id for value in expressions for node in value.walk() if isinstance(node, Attribute))


def bound(expression: Expression, positions: Mapping[ColumnId, int]) -> Expression:
    """Write an expression over identities over the positions that columns have."""
    if isinstance(expression, Attribute):
        return ColumnRef(
            side=Side.LEFT, name=expression.name, index=positions[expression.id], type=expression.type,
            written=expression.written,
        )  # fmt: skip
    children = expression.children
    return expression.with_children([bound(child, positions) for child in children]) if children else expression


def all_bound(expressions: Iterable[Expression], places: Mapping[ColumnId, int]) -> tuple[Expression, ...]:
    """Bind several expressions."""
    return tuple(bound(expression, places) for expression in expressions)


def with_values(expression: Expression, values: Mapping[ColumnId, Expression]) -> Expression:
    """Put what computes them in the place of columns; others stay."""
    if isinstance(expression, Attribute):
        return values.get(expression.id, expression)
    children = expression.children
    return expression.with_children([with_values(child, values) for child in children]) if children else expression


def _identities(relation: Relation, inputs: Sequence[ColumnTree]) -> tuple[ColumnId, ...]:
    """Give the identities of a node's columns: those of its inputs where it passes them on, else new ones."""
    names = relation.schema.names
    match relation:
        case Filter() | Limit() | TopN():
            return inputs[0].ids
        case Project():
            return _passed_on(relation.outputs, inputs[0])
        case PartialAggregate():
            keys = _passed_on(relation.keys, inputs[0])
            return (*keys, *map(ColumnId, names[len(keys) :]))
        case PythonAggregate():
            keys = tuple(inputs[0].ids[key] for key in relation.keys)
            return (*keys, *map(ColumnId, names[len(keys) :]))
        case Window() | PythonCalls() | PythonWindow():
            return (*inputs[0].ids, *map(ColumnId, names[len(inputs[0].ids) :]))
        case Explode():
            input_ids = [inputs[0].ids[n] for n in relation.passthrough]
            return (*input_ids, *map(ColumnId, names[len(input_ids) :]))
        case Join():
            output = [
                child.ids[n] for side, child in zip(Side, inputs, strict=True) for n in relation.spec.output_of(side)
            ]
            return (*output, *map(ColumnId, names[len(output) :]))
    return tuple(map(ColumnId, names))


def _passed_on(outputs: Sequence[Output], child: ColumnTree) -> tuple[ColumnId, ...]:
    return tuple(
        child.ids[output.expression.index] if isinstance(output.expression, ColumnRef) else ColumnId(output.name)
        for output in outputs
    )


def with_key_columns(tree: ColumnTree) -> ColumnTree:
    """Project the input of an aggregation so that each grouping key is a column of it."""
    node, (child,) = tree.relation, tree.inputs
    assert isinstance(node, PartialAggregate)
    schema = child.relation.schema
    computed = {id_: key for id_, key in zip(tree.ids, node.keys, strict=False) if id_ not in child.positions}
    outputs = [Output(field.name, column(schema, n), field.nullable) for n, field in enumerate(schema)]
    project = Project(child.relation, (*outputs, *computed.values()))
    ids = (*child.ids, *computed)
    places = positions(ids)
    keys = tuple(
        dataclasses.replace(key, expression=column(project.schema, places[id_]))
        for id_, key in zip(tree.ids, node.keys, strict=False)
    )
    below = ColumnTree(project, places, ids, (child,))
    return ColumnTree(dataclasses.replace(node, child=project, keys=keys), tree.positions, tree.ids, (below,))

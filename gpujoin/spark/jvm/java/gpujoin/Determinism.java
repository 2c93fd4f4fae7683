package gpujoin;

import java.util.Arrays;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.Set;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.columnar.InMemoryRelation;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DecimalType;
import scala.collection.immutable.Seq;

/**
 * What a plan gives in each partition when Spark runs a task of it again.
 *
 * <p>From files rows come in one order, after a shuffle in any. Most operations do not mind; a sum of floating-point
 * numbers, the first value of a group, a limit or a row number over ties do. Spark takes care that such rows are not sent
 * to different partitions by two runs of a task only where it sends them round robin; a mapper of gpujoin's has to know
 * itself.
 */
public final class Determinism {
    private static final String INDETERMINATE = "INDETERMINATE";
    private static final String UNORDERED = "UNORDERED";
    private static final String DETERMINATE = "DETERMINATE";

    /** Nodes that give the rows of what is below in its order. */
    private static final Set IN_ORDER = new HashSet(Arrays.asList(new Object[] {
        "ArrowEvalPython", "BatchEvalPython", "Expand", "Filter", "Generate", "LocalRelation", "OneRowRelation",
        "Project", "Range", "ResolvedHint", "SubqueryAlias", "Union", "View"
    }));
    private static final Set ANY_ORDER = new HashSet(Arrays.asList(new Object[] {
        "Distinct", "Join", "Repartition", "RepartitionByExpression", "Sort"
    }));

    private static final Set INTEGERS = new HashSet(Arrays.asList(new Object[] {"byte", "short", "integer", "long"}));
    private static final Set ORDERED = new HashSet(Arrays.asList(new Object[] {
        "byte", "short", "integer", "long", "string", "binary", "boolean", "date", "timestamp", "timestamp_ntz"
    }));

    private final IdentityHashMap levels = new IdentityHashMap();

    /** Gives the name of the level of a plan, with all that is below. */
    public String of(LogicalPlan plan) {
        String known = (String) levels.get(plan);
        if (known != null) {
            return known;
        }
        String level = plan.deterministic() ? own(plan) : INDETERMINATE;
        for (int i = 0; i < plan.children().size(); i++) {
            level = weaker(level, of((LogicalPlan) plan.children().apply(i)));
        }
        levels.put(plan, level);
        return level;
    }

    private static String weaker(String left, String right) {
        if (left.equals(INDETERMINATE) || right.equals(INDETERMINATE)) {
            return INDETERMINATE;
        }
        return left.equals(UNORDERED) ? UNORDERED : right;
    }

    /** What a node gives of rows that come in one order. */
    private String own(LogicalPlan node) {
        String name = node.getClass().getSimpleName();
        if (node instanceof LogicalRelation) {
            return ((LogicalRelation) node).relation() instanceof HadoopFsRelation ? DETERMINATE : UNORDERED;
        }
        if (node instanceof InMemoryRelation) {
            return of(((InMemoryRelation) node).cacheBuilder().logicalPlan());
        }
        if (node instanceof LogicalRDD) {
            // What Spark calls unordered may hold a function that cares for the order.
            String level = ((LogicalRDD) node).rdd().outputDeterministicLevel().toString();
            return level.equals(DETERMINATE) ? DETERMINATE : INDETERMINATE;
        }
        if (node instanceof Aggregate) {
            return isExact(((Aggregate) node).aggregateExpressions()) ? UNORDERED : INDETERMINATE;
        }
        if (IN_ORDER.contains(name)) {
            return DETERMINATE;
        }
        return ANY_ORDER.contains(name) ? UNORDERED : INDETERMINATE;
    }

    /** Whether no aggregate function in expressions depends on the order of rows. */
    private static boolean isExact(Seq expressions) {
        for (int i = 0; i < expressions.size(); i++) {
            Expression node = (Expression) expressions.apply(i);
            if (node instanceof AggregateExpression && !isExact(((AggregateExpression) node).aggregateFunction())) {
                return false;
            }
            if (!isExact(node.children())) {
                return false;
            }
        }
        return true;
    }

    private static boolean isExact(AggregateFunction function) {
        String name = function.getClass().getSimpleName();
        if (name.equals("Count")) {
            return true;
        }
        for (int i = 0; i < function.children().size(); i++) {
            DataType type = ((Expression) function.children().apply(i)).dataType();
            boolean decimal = type instanceof DecimalType;
            boolean exact = name.equals("Sum") ? decimal || INTEGERS.contains(type.typeName())
                : name.equals("Average") ? decimal
                : (name.equals("Min") || name.equals("Max")) && (decimal || ORDERED.contains(type.typeName()));
            if (!exact) {
                return false;
            }
        }
        return true;
    }
}

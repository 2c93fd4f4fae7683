package gpujoin;

import java.lang.reflect.Constructor;
import java.util.Arrays;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MapInArrow;
import org.apache.spark.sql.catalyst.plans.logical.Statistics;
import org.apache.spark.sql.catalyst.plans.physical.Partitioning;
import org.apache.spark.sql.catalyst.plans.physical.SinglePartition$;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.InputAdapter;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.ProjectExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.WholeStageCodegenExec;
import org.apache.spark.sql.execution.adaptive.AdaptiveSparkPlanExec;
import org.apache.spark.sql.execution.adaptive.QueryStageExec;
import org.apache.spark.util.AccumulatorV2;
import scala.Option;
import scala.Some;
import scala.collection.immutable.Seq;
import scala.math.BigInt;

/**
 * Rows of Python tasks that say how large they are.
 *
 * <p>Of its own MapInArrow Spark takes them to be as many as its input has: the numbers of the tasks, one row each. Of
 * rows of an RDD it takes them to be larger than anything. Either is passed on to whatever reads the rows, and a
 * checkpoint or a cached query keeps it for later queries.
 */
public final class SizedRows extends MapInArrow {
    private static final int ROW_OVERHEAD = 8;

    private final Statistics size;

    public SizedRows(
        Expression function, Seq output, LogicalPlan child, boolean barrier, Option profile, Statistics size
    ) {
        super(function, output, child, barrier, profile);
        this.size = size;
    }

    /** Gives rows of stages a size. */
    public static LogicalPlan of(LogicalPlan rows, Statistics size, SparkSession session) throws Exception {
        if (rows instanceof LogicalRDD) {
            return rebuilt((LogicalRDD) rows, rows.output(), false, session, new Some(size));
        }
        MapInArrow tasks = (MapInArrow) rows;
        return new SizedRows(
            tasks.functionExpr(), tasks.output(), tasks.child(), tasks.isBarrier(), tasks.profile(), size);
    }

    /** A size in bytes, and a number of rows where one is known. */
    public static Statistics size(BigInt bytes, Option rows) throws Exception {
        Constructor made = Statistics.class.getConstructors()[0];
        Object[] arguments = new Object[made.getParameterCount()];
        arguments[0] = bytes.$less(BigInt.apply(1)) ? BigInt.apply(1) : bytes;
        arguments[1] = rows;
        for (int i = 2; i < arguments.length; i++) {
            arguments[i] = Statistics.class.getMethod("apply$default$" + (i + 1), new Class[0]).invoke(null);
        }
        return (Statistics) made.newInstance(arguments);
    }

    /** A checkpoint with the size of its rows, counted as it was made; null where nobody has counted them. */
    public static LogicalPlan counted(Dataset checkpoint, Dataset query, SparkSession session) throws Exception {
        LogicalPlan rows = checkpoint.queryExecution().analyzed();
        long count = rows instanceof LogicalRDD ? count(query.queryExecution().executedPlan()) : 0L;
        if (count == 0L) {
            return null;
        }
        BigInt bytes = BigInt.apply(count).$times(width(rows.output()));
        Option size = new Some(size(bytes, new Some(BigInt.apply(count))));
        return rebuilt((LogicalRDD) rows, rows.output(), false, session, size);
    }

    /** The rows that a plan has given, by its metrics; 0 where its topmost operation has none. */
    private static long count(SparkPlan top) {
        SparkPlan plan = top;
        SparkPlan above = null;
        while (plan != above) {
            above = plan;
            if (plan instanceof AdaptiveSparkPlanExec) {
                plan = ((AdaptiveSparkPlanExec) plan).executedPlan();
            } else if (plan instanceof QueryStageExec) {
                plan = ((QueryStageExec) plan).plan();
            } else if (plan instanceof ProjectExec || plan instanceof WholeStageCodegenExec
                    || plan instanceof InputAdapter) {
                plan = (SparkPlan) plan.children().apply(0);
            }
        }
        Option metric = plan.metrics().get("numOutputRows");
        if (metric.isEmpty()) {
            metric = plan.metrics().get("pythonNumRowsReceived");
        }
        return metric.isEmpty() ? 0L : ((Number) ((AccumulatorV2) metric.get()).value()).longValue();
    }

    /** The bytes of as many rows of some columns as others have in as many bytes, by Spark's widths of their types. */
    public static BigInt scaled(BigInt bytes, Seq from, Seq to) {
        return bytes.$times(width(to)).$div(width(from));
    }

    private static BigInt width(Seq columns) {
        long width = ROW_OVERHEAD;
        for (int i = 0; i < columns.size(); i++) {
            width += ((Attribute) columns.apply(i)).dataType().defaultSize();
        }
        return BigInt.apply(width);
    }

    /**
     * The same rows of an RDD with other columns and statistics, and of one partition where that is said.
     *
     * <p>The constructors have got further arguments, with defaults, in some releases: those are kept as they are.
     */
    public static LogicalPlan rebuilt(
        LogicalRDD rows, Seq columns, boolean single, SparkSession session, Option size
    ) throws Exception {
        Constructor made = LogicalRDD.class.getConstructors()[0];
        Object[] arguments = new Object[made.getParameterCount()];
        Class[] types = made.getParameterTypes();
        boolean afterSession = false;
        for (int i = 0; i < arguments.length; i++) {
            if (types[i] == SparkSession.class || types[i].isInstance(session)) {
                arguments[i] = session;
                afterSession = true;
            } else if (single && types[i] == Partitioning.class) {
                arguments[i] = SinglePartition$.MODULE$;
            } else if (!afterSession) {
                arguments[i] = i == 0 ? columns : rows.productElement(i);
            } else if (types[i] == boolean.class) {
                arguments[i] = Boolean.FALSE;
            } else {
                arguments[i] = arguments[i - 1] == session ? size : Option.empty();
            }
        }
        return (LogicalPlan) made.newInstance(arguments);
    }

    public Statistics stats() {
        return size;
    }

    public String nodeName() {
        return "MapInArrow";
    }

    public Seq otherCopyArgs() {
        return PythonUtils.toSeq(Arrays.asList(new Object[] {size}));
    }

    /** Spark copies it when a plan has it twice, and where its input has changed. */
    public MapInArrow copy(Expression function, Seq output, LogicalPlan child, boolean barrier, Option profile) {
        return new SizedRows(function, output, child, barrier, profile, size);
    }
}

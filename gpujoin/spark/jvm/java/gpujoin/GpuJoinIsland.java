package gpujoin;

import java.util.ArrayList;
import java.util.Arrays;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.python.MapInArrowExec;
import scala.Option;
import scala.collection.immutable.Seq;

/**
 * A stage of an island in Spark's plans: Spark's own operator for its tasks, which says what they do and what they took.
 *
 * <p>Executors do not have this class. The RDD is Spark's; but functions of Spark's operators, of this one and of those
 * above it, may hold their plan, and go to executors with it. There it is the operator that Spark would have planned.
 */
public final class GpuJoinIsland extends MapInArrowExec {
    static final String NAME = "GpuJoinIsland";

    /** What is written in its place. It is made with the session of the thread that plans, which others have not. */
    private final transient MapInArrowExec plain;

    public GpuJoinIsland(Expression function, Seq output, SparkPlan child, boolean barrier, Option profile) {
        super(function, output, child, barrier, profile);
        this.plain = new MapInArrowExec(function, output, child, barrier, profile);
    }

    /** Not private: Janino gives private methods another name. */
    public Object writeReplace() {
        return plain;
    }

    private String function() {
        return ((PythonUDF) func()).name();
    }

    public String nodeName() {
        return NAME;
    }

    public String simpleString(int maxFields) {
        return NAME + " " + function();
    }

    public String verboseStringWithOperatorId() {
        return super.verboseStringWithOperatorId() + operations(function());
    }

    /** The operations of a stage as the last lines of its part of EXPLAIN FORMATTED. */
    static String operations(String function) {
        IslandFacts facts = IslandFacts.of(function);
        return facts == null ? "" : "Operations:\n" + facts.lines("  ");
    }

    public Seq innerChildren() {
        return tree(function());
    }

    static Seq tree(String function) {
        IslandFacts facts = IslandFacts.of(function);
        return PythonUtils.toSeq(facts == null ? new ArrayList() : Arrays.asList(new Object[] {facts.tree()}));
    }

    public scala.collection.immutable.Map metrics() {
        IslandFacts facts = IslandFacts.of(function());
        return facts == null ? super.metrics() : facts.with(super.metrics());
    }

    public MapInArrowExec withNewChildInternal(SparkPlan child) {
        return new GpuJoinIsland(func(), output(), child, isBarrier(), profile());
    }

    public MapInArrowExec copy(Expression function, Seq output, SparkPlan child, boolean barrier, Option profile) {
        return new GpuJoinIsland(function, output, child, barrier, profile);
    }
}

package gpujoin;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.spark.SparkContext;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MapInArrow;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.RDDScanExec;
import org.apache.spark.sql.execution.SparkStrategy;
import scala.Option;
import scala.collection.immutable.Seq;

/**
 * Plans stages of islands as nodes that tell what they do, in the place of Spark's own for the same rows.
 *
 * <p>In a session without it they are Spark's nodes, MapInArrow and Scan ExistingRDD: only what plans show is another.
 */
public final class IslandStrategy extends SparkStrategy {
    private static final IslandStrategy INSTANCE = new IslandStrategy();

    /** Adds the strategy to those of a session. */
    public static void addTo(SparkSession session) {
        List strategies = others(session);
        strategies.add(INSTANCE);
        session.experimental().extraStrategies_$eq(PythonUtils.toSeq(strategies));
    }

    /** Takes the strategy out of those of a session. */
    public static void removeFrom(SparkSession session) {
        session.experimental().extraStrategies_$eq(PythonUtils.toSeq(others(session)));
    }

    private static List others(SparkSession session) {
        List strategies = new ArrayList();
        Seq present = session.experimental().extraStrategies();
        for (int i = 0; i < present.size(); i++) {
            if (!(present.apply(i) instanceof IslandStrategy)) {
                strategies.add(present.apply(i));
            }
        }
        return strategies;
    }

    /** As IslandFacts.post(), for Python. */
    public void post(SparkContext context, String stage, String execution, String values) {
        IslandFacts.post(context, stage, execution, values);
    }

    public Seq apply(LogicalPlan plan) {
        if (plan instanceof MapInArrow) {
            return stage((MapInArrow) plan);
        }
        return plan instanceof LogicalRDD ? rows((LogicalRDD) plan) : nothing();
    }

    private Seq stage(MapInArrow plan) {
        boolean ours = plan.functionExpr() instanceof PythonUDF
            && IslandFacts.of(((PythonUDF) plan.functionExpr()).name()) != null;
        return ours ? one(new GpuJoinIsland(
            plan.functionExpr(), plan.output(), planLater(plan.child()), plan.isBarrier(), plan.profile())) : nothing();
    }

    private static Seq rows(LogicalRDD plan) {
        Option active = SparkSession.getActiveSession();
        if (plan.output().isEmpty() || active.isEmpty()) {
            return nothing();
        }
        String name = ((Attribute) plan.output().apply(0)).name();
        if (IslandFacts.of(name) == null) {
            return nothing();
        }
        SparkSession session = (SparkSession) active.get();
        Seq planned = session.sessionState().planner().BasicOperators().apply(plan);
        boolean known = planned.size() == 1 && planned.apply(0) instanceof RDDScanExec;
        return known ? one(new GpuJoinIslandRows(plan.output(), (RDDScanExec) planned.apply(0), name)) : nothing();
    }

    private static Seq nothing() {
        return PythonUtils.toSeq(new ArrayList());
    }

    private static Seq one(Object plan) {
        return PythonUtils.toSeq(Collections.singletonList(plan));
    }
}

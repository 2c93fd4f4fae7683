package gpujoin;

import org.apache.spark.sql.catalyst.plans.logical.HintErrorHandler;
import org.apache.spark.sql.catalyst.plans.logical.HintInfo;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.ResolvedHint;
import org.apache.spark.sql.catalyst.trees.TreePattern;
import scala.Option;

/**
 * The hint that gpu_join puts on the right side of its join, as Spark's broadcast(df) puts one.
 *
 * <p>Spark's optimizer moves it into the Join, and keeps it there. To Spark it is the user's own hint on that side, if
 * there was one, else none: a join that is left to Spark runs as if it had been written without gpu_join.
 */
public final class GpuJoinHint extends HintInfo {
    /** A node of a plan that gpujoin's functions make, as others carry the hint in the Join. */
    public interface Marked {
        GpuJoinHint hint();
    }

    private final String asked;
    private final String backend;

    /**
     * @param asked gpujoin's strategy that was asked for, or null
     * @param backend the backend that was asked for, or null
     */
    public GpuJoinHint(String asked, String backend) {
        this(Option.empty(), asked, backend);
    }

    private GpuJoinHint(Option user, String asked, String backend) {
        super(user);
        this.asked = asked;
        this.backend = backend;
    }

    /** The strategy that was asked for; null if none was. */
    public String asked() {
        return asked;
    }

    /** The backend that was asked for; null if none was. */
    public String backend() {
        return backend;
    }

    /** Takes up the user's hint below it. */
    public HintInfo merge(HintInfo other, HintErrorHandler handler) {
        return new GpuJoinHint(super.merge(other, handler).strategy(), asked, backend);
    }

    /** Gives the hint of a join that gpu_join made; null of any other. */
    public static GpuJoinHint of(Join join) {
        Option right = join.hint().rightHint();
        return right.isDefined() && right.get() instanceof GpuJoinHint ? (GpuJoinHint) right.get() : null;
    }

    /** Tells whether gpujoin made a join of a plan, which may be analyzed or optimized, or one in its subqueries. */
    public static boolean isIn(LogicalPlan plan) {
        if (plan instanceof Marked) {
            return true;
        }
        if (plan instanceof ResolvedHint && ((ResolvedHint) plan).hints() instanceof GpuJoinHint) {
            return true;
        }
        if (!plan.containsPattern(TreePattern.JOIN())) {
            return false;
        }
        if (plan instanceof Join && of((Join) plan) != null) {
            return true;
        }
        return isInAny(plan.children()) || isInAny(plan.subqueries());
    }

    private static boolean isInAny(scala.collection.Seq plans) {
        for (int i = 0; i < plans.size(); i++) {
            if (isIn((LogicalPlan) plans.apply(i))) {
                return true;
            }
        }
        return false;
    }

    public boolean canEqual(Object other) {
        return other instanceof GpuJoinHint;
    }

    public boolean equals(Object other) {
        if (!(other instanceof GpuJoinHint) || !super.equals(other)) {
            return false;
        }
        GpuJoinHint hint = (GpuJoinHint) other;
        return java.util.Objects.equals(asked, hint.asked) && java.util.Objects.equals(backend, hint.backend);
    }

    public int hashCode() {
        return super.hashCode();
    }

    public String toString() {
        String text = "gpu_join";
        text += asked == null ? "" : ", strategy=" + asked;
        text += backend == null ? "" : ", backend=" + backend;
        return text + (strategy().isEmpty() ? "" : ", " + strategy().get());
    }
}

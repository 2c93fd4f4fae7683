package gpujoin;

import java.util.function.UnaryOperator;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;

/** An optimizer rule that asks Python for the plan. */
public final class PythonRule extends Rule {
    private final UnaryOperator callback;

    public PythonRule(UnaryOperator callback) {
        this.callback = callback;
    }

    public TreeNode apply(TreeNode plan) {
        return (TreeNode) callback.apply(plan);
    }
}

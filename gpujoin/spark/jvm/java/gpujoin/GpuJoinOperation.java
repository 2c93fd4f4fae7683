package gpujoin;

import java.util.ArrayList;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.execution.SparkPlan;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;

/** An operation of an island as plans show it, below the node of its stage. It runs nothing. */
public final class GpuJoinOperation extends SparkPlan {
    private final String text;
    private final Seq inputs;

    public GpuJoinOperation(String text, Seq inputs) {
        this.text = text;
        this.inputs = inputs;
    }

    public String nodeName() {
        return text;
    }

    public String simpleString(int maxFields) {
        return text;
    }

    /** It has no number: its stage's part of EXPLAIN FORMATTED lists it. */
    public String simpleStringWithNodeId() {
        return text;
    }

    public Seq output() {
        return PythonUtils.toSeq(new ArrayList());
    }

    public Seq children() {
        return inputs;
    }

    public TreeNode withNewChildrenInternal(IndexedSeq children) {
        return new GpuJoinOperation(text, children);
    }

    public RDD doExecute() {
        throw new UnsupportedOperationException("an operation of an island runs in the tasks of its stage");
    }

    public int productArity() {
        return 2;
    }

    public Object productElement(int n) {
        return n == 0 ? (Object) text : inputs;
    }

    public boolean canEqual(Object other) {
        return other instanceof GpuJoinOperation;
    }
}

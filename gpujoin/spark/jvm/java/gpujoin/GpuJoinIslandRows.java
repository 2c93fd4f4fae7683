package gpujoin;

import java.util.ArrayList;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.plans.physical.Partitioning;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.execution.CodegenSupport;
import org.apache.spark.sql.execution.InputRDDCodegen;
import org.apache.spark.sql.execution.RDDScanExec;
import org.apache.spark.sql.execution.SparkPlan;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;

/**
 * An island whose stages exchange bytes, in Spark's plans: what Spark plans for the RDD of its rows, which says what its
 * tasks do and what they took.
 *
 * <p>The RDD and the code for its rows are Spark's: executors do not have this class. Where a plan goes to them, they get
 * Spark's operator in its place, as of GpuJoinIsland.
 */
public final class GpuJoinIslandRows extends SparkPlan implements InputRDDCodegen {
    private final Seq columns;
    private final RDDScanExec scan;
    private final String function;
    private transient CodegenSupport parent = null;

    /**
     * @param columns those of the scan
     * @param scan Spark's own operator
     * @param function name of the last stage's function
     */
    public GpuJoinIslandRows(Seq columns, RDDScanExec scan, String function) {
        this.columns = columns;
        this.scan = scan;
        this.function = function;
    }

    /** Not private: Janino gives private methods another name. */
    public Object writeReplace() {
        return scan;
    }

    public CodegenSupport parent() {
        return parent;
    }

    public void parent_$eq(CodegenSupport parent) {
        this.parent = parent;
    }

    public RDD inputRDD() {
        return scan.inputRDD();
    }

    public boolean createUnsafeProjection() {
        return scan.createUnsafeProjection();
    }

    public RDD doExecute() {
        return scan.execute();
    }

    public String nodeName() {
        return GpuJoinIsland.NAME;
    }

    public String simpleString(int maxFields) {
        return GpuJoinIsland.NAME + " " + function + " of stages that exchange bytes";
    }

    public String verboseStringWithOperatorId() {
        return formattedNodeName() + "\nOutput: " + columns.mkString("[", ", ", "]") + "\nArguments: " + function + "\n"
            + GpuJoinIsland.operations(function);
    }

    public Seq innerChildren() {
        return GpuJoinIsland.tree(function);
    }

    public scala.collection.immutable.Map metrics() {
        IslandFacts facts = IslandFacts.of(function);
        return facts == null ? scan.metrics() : facts.with(scan.metrics());
    }

    public Seq output() {
        return columns;
    }

    public Partitioning outputPartitioning() {
        return scan.outputPartitioning();
    }

    public Seq outputOrdering() {
        return scan.outputOrdering();
    }

    public Seq children() {
        return PythonUtils.toSeq(new ArrayList());
    }

    public TreeNode withNewChildrenInternal(IndexedSeq children) {
        return this;
    }

    public int productArity() {
        return 3;
    }

    public Object productElement(int n) {
        return n == 0 ? columns : n == 1 ? (Object) scan : function;
    }

    public boolean canEqual(Object other) {
        return other instanceof GpuJoinIslandRows;
    }

    /** Two are equal that give the same RDD, under columns of the same ids. */
    public boolean equals(Object other) {
        return other instanceof GpuJoinIslandRows && ((GpuJoinIslandRows) other).scan.rdd() == scan.rdd()
            && ((GpuJoinIslandRows) other).columns.equals(columns);
    }

    public int hashCode() {
        return System.identityHashCode(scan.rdd());
    }
}

package gpujoin;

import java.util.ArrayList;
import java.util.Arrays;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Statistics;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.catalyst.trees.TreePattern;
import scala.collection.Iterator;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;
import scala.math.BigInt;

/**
 * The as-of join that gpu_asof_join makes: each left row once, with the right row that is nearest by an order key.
 *
 * <p>Spark's optimizer knows nothing of it. It leaves out columns that nobody reads, as below any node, and moves nothing
 * else through it, so it cannot do what it may do with an outer join and must not with this one: make it an inner join,
 * or filter the right rows before the nearest is chosen. The columns are those of both sides, the right ones nullable.
 * GpuAsOfRule moves filters through it, and turns into a plan of Spark's own what gpujoin does not run.
 */
public final class GpuAsOfJoin extends LogicalPlan implements GpuJoinHint.Marked {
    private static final int ROW_OVERHEAD = 8;
    private static final String[] NAMES = {
        "left", "right", "leftOrder", "rightOrder", "leftKeys", "rightKeys", "terms", "query", "hint"
    };

    private final LogicalPlan left;
    private final LogicalPlan right;
    private final Attribute leftOrder;
    private final Attribute rightOrder;
    private final Seq leftKeys;
    private final Seq rightKeys;
    private final String terms;
    private final String query;
    private final GpuJoinHint hint;

    /**
     * @param leftOrder the order key of the left rows
     * @param leftKeys attributes that must equal those of rightKeys
     * @param terms what else is asked for, as Python reads it
     * @param query the same in Spark's SQL, see GpuAsOfRule
     * @param hint the strategy and the backend that were asked for
     */
    public GpuAsOfJoin(
        LogicalPlan left, LogicalPlan right, Attribute leftOrder, Attribute rightOrder, Seq leftKeys, Seq rightKeys,
        String terms, String query, GpuJoinHint hint
    ) {
        this.left = left;
        this.right = right;
        this.leftOrder = leftOrder;
        this.rightOrder = rightOrder;
        this.leftKeys = leftKeys;
        this.rightKeys = rightKeys;
        this.terms = terms;
        this.query = query;
        this.hint = hint;
    }

    public LogicalPlan left() {
        return left;
    }

    public LogicalPlan right() {
        return right;
    }

    public Attribute leftOrder() {
        return leftOrder;
    }

    public Attribute rightOrder() {
        return rightOrder;
    }

    public Seq leftKeys() {
        return leftKeys;
    }

    public Seq rightKeys() {
        return rightKeys;
    }

    public String terms() {
        return terms;
    }

    public String query() {
        return query;
    }

    public GpuJoinHint hint() {
        return hint;
    }

    public Seq output() {
        ArrayList columns = new ArrayList();
        for (int i = 0; i < left.output().size(); i++) {
            columns.add(left.output().apply(i));
        }
        for (int i = 0; i < right.output().size(); i++) {
            columns.add(((Attribute) right.output().apply(i)).withNullability(true));
        }
        return PythonUtils.toSeq(columns);
    }

    public Seq metadataOutput() {
        return PythonUtils.toSeq(new ArrayList());
    }

    public Seq children() {
        return PythonUtils.toSeq(Arrays.asList(new Object[] {left, right}));
    }

    public TreeNode withNewChildrenInternal(IndexedSeq children) {
        return withChildren((LogicalPlan) children.apply(0), (LogicalPlan) children.apply(1));
    }

    public GpuAsOfJoin withChildren(LogicalPlan left, LogicalPlan right) {
        return new GpuAsOfJoin(left, right, leftOrder, rightOrder, leftKeys, rightKeys, terms, query, hint);
    }

    /** As many rows as on the left, wider ones. */
    public Statistics stats() {
        Statistics rows = left.stats();
        int narrow = left.schema().defaultSize() + ROW_OVERHEAD;
        int wide = schema().defaultSize() + ROW_OVERHEAD;
        BigInt size = rows.sizeInBytes().$times(BigInt.apply(wide)).$div(BigInt.apply(narrow));
        return new Statistics(size, rows.rowCount(), rows.attributeStats(), false);
    }

    public Seq nodePatterns() {
        return PythonUtils.toSeq(Arrays.asList(new Object[] {TreePattern.JOIN()}));
    }

    public int productArity() {
        return NAMES.length;
    }

    public Object productElement(int n) {
        return new Object[] {left, right, leftOrder, rightOrder, leftKeys, rightKeys, terms, query, hint}[n];
    }

    public String productElementName(int n) {
        return NAMES[n];
    }

    /** What plans show of it. */
    public Iterator stringArgs() {
        return PythonUtils.toSeq(Arrays.asList(new Object[] {leftOrder, rightOrder, leftKeys, rightKeys, terms})).iterator();
    }

    public boolean canEqual(Object other) {
        return other instanceof GpuAsOfJoin;
    }

    public boolean equals(Object other) {
        if (this == other) {
            return true;
        }
        if (!(other instanceof GpuAsOfJoin)) {
            return false;
        }
        for (int i = 0; i < NAMES.length; i++) {
            if (!productElement(i).equals(((GpuAsOfJoin) other).productElement(i))) {
                return false;
            }
        }
        return true;
    }

    public int hashCode() {
        return super.hashCode();
    }
}

package gpujoin;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.WeakHashMap;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.CreateNamedStruct;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GetStructField;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression$;
import org.apache.spark.sql.catalyst.expressions.PlanExpression;
import org.apache.spark.sql.catalyst.optimizer.PushDownPredicates$;
import org.apache.spark.sql.catalyst.parser.CatalystSqlParser;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Subquery;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.catalyst.trees.TreePattern;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Metadata;
import scala.Option;
import scala.Some;
import scala.collection.immutable.Seq;
import scala.runtime.AbstractFunction1;

/**
 * The optimizer rule for as-of joins, of sessions that have called gpu_asof_join; it stands after PythonRule.
 *
 * <p>It moves filters of left rows below the join: each left row is returned once, whatever is on the right. A filter by
 * keys goes to both sides. And it turns an as-of join that PythonRule has left, or was not asked for, into Spark's own
 * operators, so no query depends on Python to give the right rows:
 *
 * <pre>
 * left (3, a) (9, b)      union, in order of time, right rows first:    right (1, x)  left (3, a)  right (8, y)  left (9, b)
 * right (1, x) (8, y)     the last right row before each left row:                         x                          y
 * </pre>
 */
public final class GpuAsOfRule extends Rule {
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private static final String[] SIDES = {"gpujoin_left", "gpujoin_right"};
    private static final int MOST_PASSES = 100;

    /** Expressions that cannot fail, so that they may be computed of more rows. */
    private static final Set PLAIN = new HashSet(Arrays.asList(new Object[] {
        "And", "AttributeReference", "EqualNullSafe", "EqualTo", "GreaterThan", "GreaterThanOrEqual", "In", "InSet",
        "IsNotNull", "IsNull", "LessThan", "LessThanOrEqual", "Literal", "Not", "Or", "StartsWith"
    }));
    /** Types of equal values that are the same. */
    private static final Set EXACT = new HashSet(Arrays.asList(new Object[] {
        DataTypes.ByteType, DataTypes.ShortType, DataTypes.IntegerType, DataTypes.LongType, DataTypes.StringType,
        DataTypes.BinaryType, DataTypes.BooleanType, DataTypes.DateType, DataTypes.TimestampType,
        DataTypes.TimestampNTZType
    }));

    /** What has been told to Spark of sessions without the rule. */
    private static final Map KNOWING = new WeakHashMap();

    /** How many plans a thread is optimizing in which as-of joins are kept. */
    private static final ThreadLocal KEPT = new ThreadLocal();

    public TreeNode apply(TreeNode plan) {
        LogicalPlan given = (LogicalPlan) plan;
        if (!isIn(given)) {
            return plan;
        }
        LogicalPlan pushed = pushed(given);
        // The plan of a subquery is seen again, in the one that it is of.
        return given instanceof Subquery || KEPT.get() != null ? pushed : lowered(pushed, SparkSession.active());
    }

    /**
     * Adds the rule to those of a session, if it has none of its kind; one that is there goes to the end.
     *
     * <p>All sessions that share its views get to know of as-of joins: those that newSession() has made, or will make.
     */
    public void addTo(SparkSession session) {
        SparkSessionExtensions extensions = session.extensions();
        synchronized (KNOWING) {
            if (KNOWING.put(extensions, Boolean.TRUE) == null) {
                extensions.injectPreCBORule(new OfOthers(this));
            }
        }
        List rules = new ArrayList();
        Seq present = session.experimental().extraOptimizations();
        for (int i = 0; i < present.size(); i++) {
            if (!(present.apply(i) instanceof GpuAsOfRule)) {
                rules.add(present.apply(i));
            }
        }
        rules.add(this);
        session.experimental().extraOptimizations_$eq(PythonUtils.toSeq(rules));
    }

    /** Adds the rule to those of a session if another one has it. */
    public void addToClone(SparkSession session, SparkSession clone) {
        if (session.experimental().extraOptimizations().contains(this)) {
            addTo(clone);
        }
    }

    /** Has the rule, in this thread, keep as-of joins as they are. */
    public static void keep() {
        Object kept = KEPT.get();
        KEPT.set(Integer.valueOf(kept == null ? 1 : ((Integer) kept).intValue() + 1));
    }

    /** Ends what keep() began. */
    public static void keepNoLonger() {
        int kept = ((Integer) KEPT.get()).intValue();
        if (kept == 1) {
            KEPT.remove();
        } else {
            KEPT.set(Integer.valueOf(kept - 1));
        }
    }

    /** Tells whether an as-of join is in a plan, or in its subqueries. */
    public static boolean isIn(LogicalPlan plan) {
        if (!plan.containsAnyPattern(patterns())) {
            return false;
        }
        return plan instanceof GpuAsOfJoin || isInAny(plan.children()) || isInAny(plan.subqueries());
    }

    private static boolean isAmongThoseOf(SparkSession session) {
        Seq present = session.experimental().extraOptimizations();
        for (int i = 0; i < present.size(); i++) {
            if (present.apply(i) instanceof GpuAsOfRule) {
                return true;
            }
        }
        return false;
    }

    private static Seq patterns() {
        return seq(Arrays.asList(new Object[] {TreePattern.JOIN(), TreePattern.PLAN_EXPRESSION()}));
    }

    private static boolean isInAny(Seq plans) {
        for (int i = 0; i < plans.size(); i++) {
            if (isIn((LogicalPlan) plans.apply(i))) {
                return true;
            }
        }
        return false;
    }

    // -- making one ---------------------------------------------------------------------------------------------------

    /**
     * Makes an as-of join of two analyzed plans.
     *
     * @param described JSON: "orders", and for each side "keys", as positions of columns; the "kept" right columns; the
     *     "names" of all columns of the result; "terms" and "query", see GpuAsOfJoin
     */
    public LogicalPlan join(LogicalPlan left, LogicalPlan right, String described, GpuJoinHint hint)
        throws IOException {
        Map join = (Map) MAPPER.readValue(described, Map.class);
        List names = (List) join.get("names");
        LogicalPlan searched = numbered(right);
        List orders = (List) join.get("orders");
        List keys = (List) join.get("keys");
        GpuAsOfJoin made = new GpuAsOfJoin(
            left, searched, column(left, orders.get(0)), column(searched, orders.get(1)),
            columns(left, (List) keys.get(0)), columns(searched, (List) keys.get(1)),
            (String) join.get("terms"), (String) join.get("query"), hint
        );
        List named = new ArrayList();
        for (int i = 0; i < left.output().size(); i++) {
            Attribute column = column(left, Integer.valueOf(i));
            boolean same = column.name().equals(names.get(i));
            named.add(same ? column : alias(column, (String) names.get(i), column));
        }
        Seq output = made.output();
        for (Object position : (List) join.get("kept")) {
            int i = ((Integer) position).intValue();
            Attribute value = (Attribute) output.apply(left.output().size() + i);
            named.add(alias(value, (String) names.get(named.size()), column(right, position)));
        }
        return new Project(seq(named), made);
    }

    /**
     * Gives the columns of a plan other ids.
     *
     * <p>Both sides may be of one DataFrame. By another name Spark does not take the alias to be superfluous.
     */
    private static LogicalPlan numbered(LogicalPlan plan) {
        List named = new ArrayList();
        for (int i = 0; i < plan.output().size(); i++) {
            Attribute column = column(plan, Integer.valueOf(i));
            named.add(alias(column, column.name() + "#" + i, column));
        }
        return new Project(seq(named), plan);
    }

    private static Attribute column(LogicalPlan plan, Object position) {
        return (Attribute) plan.output().apply(((Integer) position).intValue());
    }

    private static Seq columns(LogicalPlan plan, List positions) {
        List columns = new ArrayList();
        for (Object position : positions) {
            columns.add(column(plan, position));
        }
        return seq(columns);
    }

    // -- filters ------------------------------------------------------------------------------------------------------

    /** Moves filters through as-of joins, and on. */
    public static LogicalPlan pushed(LogicalPlan plan) {
        if (!isIn(plan)) {
            return plan;
        }
        LogicalPlan moved = plan;
        if (plan instanceof Filter && ((Filter) plan).child() instanceof GpuAsOfJoin) {
            moved = through((Filter) plan);
        }
        List children = new ArrayList();
        for (int i = 0; i < moved.children().size(); i++) {
            children.add(pushed((LogicalPlan) moved.children().apply(i)));
        }
        return withChildren(moved, children);
    }

    private static LogicalPlan through(Filter filter) {
        GpuAsOfJoin join = (GpuAsOfJoin) filter.child();
        List parts = new ArrayList();
        split(filter.condition(), parts);
        AttributeSet leftColumns = join.left().outputSet();
        Map keys = exactKeys(join);
        Expression left = null;
        Expression right = null;
        Expression above = null;
        for (Object each : parts) {
            Expression part = (Expression) each;
            if (!part.deterministic() || !part.references().subsetOf(leftColumns)) {
                above = and(above, part);
                continue;
            }
            left = and(left, part);
            if (!part.references().isEmpty() && isPlain(part, keys)) {
                right = and(right, (Expression) part.transform(PythonUtils.toScalaMap(keys)));
            }
        }
        if (left == null) {
            return filter;
        }
        LogicalPlan rows = down(new Filter(left, join.left()));
        LogicalPlan searched = right == null ? join.right() : down(new Filter(right, join.right()));
        LogicalPlan moved = join.withChildren(rows, searched);
        moved.copyTagsFrom(join);
        return above == null ? moved : new Filter(above, moved);
    }

    /** Moves a filter down as far as Spark would have moved it, had it been there before. */
    private static LogicalPlan down(LogicalPlan plan) {
        LogicalPlan moved = plan;
        for (int i = 0; i < MOST_PASSES; i++) {
            LogicalPlan next = PushDownPredicates$.MODULE$.apply(moved);
            if (next.fastEquals(moved)) {
                return next;
            }
            moved = next;
        }
        return moved;
    }

    /** The right key of each left one, where equal values are the same. */
    private static Map exactKeys(GpuAsOfJoin join) {
        Map keys = new HashMap();
        for (int i = 0; i < join.leftKeys().size(); i++) {
            Attribute left = (Attribute) join.leftKeys().apply(i);
            Attribute right = (Attribute) join.rightKeys().apply(i);
            if (left.dataType().equals(right.dataType()) && EXACT.contains(left.dataType())) {
                keys.put(left.canonicalized(), right);
                keys.put(left, right);
            }
        }
        return keys;
    }

    private static boolean isPlain(Expression part, Map keys) {
        if (!PLAIN.contains(part.getClass().getSimpleName())) {
            return false;
        }
        if (part instanceof Attribute) {
            return keys.containsKey(part);
        }
        for (int i = 0; i < part.children().size(); i++) {
            if (!isPlain((Expression) part.children().apply(i), keys)) {
                return false;
            }
        }
        return true;
    }

    private static void split(Expression condition, List parts) {
        if (condition instanceof And) {
            split(((And) condition).left(), parts);
            split(((And) condition).right(), parts);
        } else {
            parts.add(condition);
        }
    }

    private static Expression and(Expression left, Expression right) {
        return left == null ? right : new And(left, right);
    }

    // -- Spark's own operators ----------------------------------------------------------------------------------------

    private static LogicalPlan lowered(LogicalPlan plan, SparkSession session) {
        if (!isIn(plan)) {
            return plan;
        }
        List children = new ArrayList();
        for (int i = 0; i < plan.children().size(); i++) {
            children.add(lowered((LogicalPlan) plan.children().apply(i), session));
        }
        LogicalPlan changed = withChildren(plan, children);
        HashMap entries = new HashMap();
        for (int i = 0; i < changed.expressions().size(); i++) {
            addSubqueries((Expression) changed.expressions().apply(i), session, entries);
        }
        if (!entries.isEmpty()) {
            changed = (LogicalPlan) changed.transformExpressions(PythonUtils.toScalaMap(entries));
        }
        if (changed instanceof GpuAsOfJoin) {
            changed = bySpark((GpuAsOfJoin) changed, session);
            changed.copyTagsFrom(plan);
        }
        return changed;
    }

    private static void addSubqueries(Expression expression, SparkSession session, HashMap entries) {
        if (expression instanceof PlanExpression) {
            PlanExpression holder = (PlanExpression) expression;
            if (isIn((LogicalPlan) holder.plan())) {
                entries.put(holder, holder.withNewPlan(lowered((LogicalPlan) holder.plan(), session)));
            }
        }
        for (int i = 0; i < expression.children().size(); i++) {
            addSubqueries((Expression) expression.children().apply(i), session, entries);
        }
    }

    /** An as-of join as its query says it, which takes the order key t, the keys k0, … and the row v of both sides. */
    private static LogicalPlan bySpark(GpuAsOfJoin join, SparkSession session) {
        LogicalPlan[] inputs = {
            input(join.left(), join.leftOrder(), join.leftKeys()), input(join.right(), join.rightOrder(), join.rightKeys())
        };
        LogicalPlan[] leaves = new LogicalPlan[SIDES.length];
        HashMap byName = new HashMap();
        for (int i = 0; i < SIDES.length; i++) {
            JavaSparkContext context = new JavaSparkContext(session.sparkContext());
            leaves[i] = session.createDataFrame(context.emptyRDD(), inputs[i].schema()).queryExecution().analyzed();
            byName.put(SIDES[i], leaves[i]);
        }
        LogicalPlan parsed = withLeaves(new CatalystSqlParser().parsePlan(join.query()), byName);
        LogicalPlan query = Dataset.ofRows(session, parsed).queryExecution().optimizedPlan();
        LogicalPlan filled = filled(query, leaves, inputs);
        List named = new ArrayList();
        Attribute rows = column(filled, Integer.valueOf(0));
        Attribute nearest = column(filled, Integer.valueOf(1));
        Seq output = join.output();
        int lefts = join.left().output().size();
        for (int i = 0; i < output.size(); i++) {
            Attribute like = (Attribute) output.apply(i);
            int field = i < lefts ? i : i - lefts;
            named.add(renamed(new GetStructField(i < lefts ? rows : nearest, field, Option.empty()), like));
        }
        return new Project(seq(named), filled);
    }

    private static LogicalPlan input(LogicalPlan rows, Attribute order, Seq keys) {
        List named = new ArrayList();
        named.add(alias(order, "t", null));
        for (int i = 0; i < keys.size(); i++) {
            named.add(alias((Attribute) keys.apply(i), "k" + i, null));
        }
        List fields = new ArrayList();
        for (int i = 0; i < rows.output().size(); i++) {
            fields.add(Literal.create("c" + i, DataTypes.StringType));
            fields.add(rows.output().apply(i));
        }
        named.add(alias(new CreateNamedStruct(seq(fields)), "v", null));
        return new Project(seq(named), rows);
    }

    private static LogicalPlan withLeaves(LogicalPlan plan, Map byName) {
        if (plan instanceof UnresolvedRelation) {
            return (LogicalPlan) byName.get(((UnresolvedRelation) plan).name());
        }
        List children = new ArrayList();
        for (int i = 0; i < plan.children().size(); i++) {
            children.add(withLeaves((LogicalPlan) plan.children().apply(i), byName));
        }
        return withChildren(plan, children);
    }

    /** Puts the inputs in the places of the leaves, under their names and ids. */
    private static LogicalPlan filled(LogicalPlan plan, LogicalPlan[] leaves, LogicalPlan[] inputs) {
        if (plan.children().isEmpty()) {
            int side = plan.outputSet().subsetOf(leaves[0].outputSet()) ? 0 : 1;
            List named = new ArrayList();
            for (int i = 0; i < plan.output().size(); i++) {
                Attribute like = column(plan, Integer.valueOf(i));
                named.add(renamed(column(inputs[side], Integer.valueOf(leaves[side].output().indexOf(like))), like));
            }
            return new Project(seq(named), inputs[side]);
        }
        List children = new ArrayList();
        for (int i = 0; i < plan.children().size(); i++) {
            children.add(filled((LogicalPlan) plan.children().apply(i), leaves, inputs));
        }
        return withChildren(plan, children);
    }

    // -- plans --------------------------------------------------------------------------------------------------------

    private static LogicalPlan withChildren(LogicalPlan plan, List children) {
        for (int i = 0; i < children.size(); i++) {
            if (children.get(i) != plan.children().apply(i)) {
                return (LogicalPlan) plan.withNewChildren(seq(children));
            }
        }
        return plan;
    }

    /** Names a value, with the metadata of a column, or none. */
    private static Alias alias(Expression value, String name, Attribute like) {
        Option metadata = new Some(like == null ? Metadata.empty() : like.metadata());
        return new Alias(value, name, NamedExpression$.MODULE$.newExprId(), nothing(), metadata, nothing());
    }

    private static Alias renamed(Expression value, Attribute like) {
        return new Alias(value, like.name(), like.exprId(), like.qualifier(), new Some(like.metadata()), nothing());
    }

    private static Seq nothing() {
        return seq(new ArrayList());
    }

    private static Seq seq(List values) {
        return PythonUtils.toSeq(values);
    }

    // -- sessions that have not called gpu_asof_join ------------------------------------------------------------------

    /** Gives Spark, each time it optimizes a plan in a session, a rule for the as-of joins of others' views. */
    private static final class OfOthers extends AbstractFunction1 {
        private final GpuAsOfRule rule;

        OfOthers(GpuAsOfRule rule) {
            this.rule = rule;
        }

        public Object apply(Object session) {
            SparkSession given = (SparkSession) session;
            return new Late(rule, given, isAmongThoseOf(given));
        }
    }

    /** Turns as-of joins into Spark's operators where the rule is missing, and adds it for the plans that follow. */
    private static final class Late extends Rule {
        private final GpuAsOfRule rule;
        private final SparkSession session;
        private final boolean superfluous;

        Late(GpuAsOfRule rule, SparkSession session, boolean superfluous) {
            this.rule = rule;
            this.session = session;
            this.superfluous = superfluous;
        }

        public TreeNode apply(TreeNode plan) {
            if (superfluous || !isIn((LogicalPlan) plan)) {
                return plan;
            }
            TreeNode changed = rule.apply(plan);
            if (!(plan instanceof Subquery)) {
                rule.addTo(session);
            }
            return changed;
        }
    }
}

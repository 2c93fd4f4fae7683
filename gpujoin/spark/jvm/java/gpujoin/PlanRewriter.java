package gpujoin;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.lang.reflect.Constructor;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.api.python.SimplePythonFunction;
import org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute;
import org.apache.spark.sql.catalyst.analysis.UnresolvedExtractValue;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Ascending$;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.Coalesce;
import org.apache.spark.sql.catalyst.expressions.CurrentRow$;
import org.apache.spark.sql.catalyst.expressions.Descending$;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.EvalMode;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.GreaterThan;
import org.apache.spark.sql.catalyst.expressions.If;
import org.apache.spark.sql.catalyst.expressions.IsNull;
import org.apache.spark.sql.catalyst.expressions.KnownNotNull;
import org.apache.spark.sql.catalyst.expressions.KnownNullable;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression$;
import org.apache.spark.sql.catalyst.expressions.Not;
import org.apache.spark.sql.catalyst.expressions.NullOrdering;
import org.apache.spark.sql.catalyst.expressions.NullsFirst$;
import org.apache.spark.sql.catalyst.expressions.NullsLast$;
import org.apache.spark.sql.catalyst.expressions.PlanExpression;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.expressions.RowFrame$;
import org.apache.spark.sql.catalyst.expressions.RowNumber;
import org.apache.spark.sql.catalyst.expressions.SortDirection;
import org.apache.spark.sql.catalyst.expressions.SortOrder;
import org.apache.spark.sql.catalyst.expressions.SpecifiedWindowFrame;
import org.apache.spark.sql.catalyst.expressions.UnboundedPreceding$;
import org.apache.spark.sql.catalyst.expressions.UnresolvedNamedLambdaVariable;
import org.apache.spark.sql.catalyst.expressions.UnscaledValue;
import org.apache.spark.sql.catalyst.expressions.WindowExpression;
import org.apache.spark.sql.catalyst.expressions.WindowFrame;
import org.apache.spark.sql.catalyst.expressions.WindowSpecDefinition;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction;
import org.apache.spark.sql.catalyst.expressions.aggregate.DeclarativeAggregate;
import org.apache.spark.sql.catalyst.expressions.aggregate.Max;
import org.apache.spark.sql.catalyst.expressions.aggregate.Min;
import org.apache.spark.sql.catalyst.expressions.aggregate.Sum;
import org.apache.spark.sql.catalyst.optimizer.NormalizeFloatingNumbers$;
import org.apache.spark.sql.catalyst.optimizer.PropagateEmptyRelation$;
import org.apache.spark.sql.catalyst.parser.CatalystSqlParser;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MapInArrow;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Range;
import org.apache.spark.sql.catalyst.plans.logical.RepartitionByExpression;
import org.apache.spark.sql.catalyst.plans.logical.Sort;
import org.apache.spark.sql.catalyst.plans.logical.Statistics;
import org.apache.spark.sql.catalyst.plans.logical.Union;
import org.apache.spark.sql.catalyst.plans.logical.Window;
import org.apache.spark.sql.catalyst.trees.TreeNodeTag;
import org.apache.spark.sql.catalyst.types.DataTypeUtils;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.util.CollectionAccumulator;
import scala.Option;
import scala.Some;
import scala.collection.immutable.Seq;
import scala.math.BigInt;

/** Puts plans in the places of others of a plan that was read, from descriptions by Python. */
public final class PlanRewriter {
    private static final ObjectMapper MAPPER = new ObjectMapper();

    /** The key under which the analyzed plan of a rewritten query has the name of its explanation. */
    private static final TreeNodeTag NAME = new TreeNodeTag("gpujoin.query");

    /** Begins to rewrite a plan. */
    public Rewriting rewriting(PlanReader.Reading reading, SparkSession session) {
        return new Rewriting(reading, session);
    }

    /** Names the explanation of a rewritten query. */
    public void name(LogicalPlan plan, String name) {
        plan.setTagValue(NAME, name);
    }

    /** Gives a checkpoint of a query the size of the rows that were counted; null where none were. */
    public LogicalPlan counted(Dataset checkpoint, Dataset query, SparkSession session) throws Exception {
        return SizedRows.counted(checkpoint, query, session);
    }

    /** Gives the name of the explanation of a rewritten query; null for any other query. */
    public String nameOf(Dataset query) {
        Option name = query.queryExecution().analyzed().getTagValue(NAME);
        return name.isDefined() ? (String) name.get() : null;
    }

    /**
     * Analyzes what a query was rewritten to, and lets its columns be nullable, have metadata, and name the fields of
     * structs, as the query's are declared: Spark's optimizer may know better, and may take one of several values that
     * come together. Gives null where the columns still differ.
     */
    public LogicalPlan declared(SparkSession session, LogicalPlan plan, Dataset query) {
        StructType wanted = query.schema();
        Dataset made = Dataset.ofRows(session, plan);
        if (!made.schema().equals(wanted) && made.schema().size() == wanted.size()) {
            ArrayList columns = new ArrayList();
            for (int i = 0; i < wanted.size(); i++) {
                Attribute column = (Attribute) plan.output().apply(i);
                columns.add(declared(column, made.schema().fields()[i], wanted.fields()[i]));
            }
            made = Dataset.ofRows(session, new Project(seq(columns), plan));
        }
        return made.schema().equals(wanted) ? made.queryExecution().analyzed() : null;
    }

    private static Expression declared(Attribute column, StructField has, StructField needs) {
        boolean nullable = needs.nullable();
        boolean alike = has.nullable() == nullable;
        boolean named = has.dataType().equals(needs.dataType());
        if (alike && named && has.metadata().equals(needs.metadata())) {
            return column;
        }
        Expression value = column;
        if (!named && isRenaming(has.dataType(), needs.dataType())) {
            value = new Cast(value, needs.dataType(), Option.empty(), EvalMode.LEGACY());
        }
        // Spark's analyzer forgets that an alias has no metadata, and gives it those of the column that it names.
        if (!alike || needs.metadata().isEmpty()) {
            value = nullable ? (Expression) new KnownNullable(value) : (Expression) new KnownNotNull(value);
        }
        Seq nothing = seq(new ArrayList());
        return new Alias(
                value, column.name(), NamedExpression$.MODULE$.newExprId(), nothing, new Some(needs.metadata()),
                nothing);
    }

    /** Tells whether types differ in names of fields alone, and in where there may be nulls, as Spark casts them. */
    private static boolean isRenaming(DataType has, DataType needs) {
        return DataType.equalsStructurally(has, needs, true) && Cast.canCast(has, needs);
    }

    /** A plan that was read, in which some plans are replaced. */
    public static final class Rewriting {
        private final PlanReader.Reading reading;
        private final SparkSession session;
        private final HashMap replaced = new HashMap();

        Rewriting(PlanReader.Reading reading, SparkSession session) {
            this.reading = reading;
            this.session = session;
        }

        /** Puts a plan with the same columns in the place of another. */
        public void replace(int number, LogicalPlan plan) {
            replaced.put(Integer.valueOf(number), plan);
        }

        /** Puts a plan in the place of another whose columns have the same types, in the same order. */
        public void replaceRenamed(int number, LogicalPlan plan) {
            Seq wanted = reading.plan(number).output();
            ArrayList named = new ArrayList();
            for (int i = 0; i < wanted.size(); i++) {
                named.add(renamed((Attribute) plan.output().apply(i), (Attribute) wanted.apply(i)));
            }
            replace(number, new Project(seq(named), plan));
        }

        /**
         * Gives some columns of a plan as it is by now, under names of their own: Arrow's fields cannot share one.
         *
         * @param columns numbers of expressions over the plan's columns
         */
        public LogicalPlan rows(int number, List columns) {
            ArrayList named = new ArrayList();
            for (int i = 0; i < columns.size(); i++) {
                named.add(numbered(expression(columns.get(i)), i));
            }
            if (named.isEmpty()) { // rows without columns would not be counted
                named.add(numbered(Literal.TrueLiteral(), 0));
            }
            return new Project(seq(named), current(number));
        }

        private static Alias numbered(Expression value, int number) {
            Seq none = seq(new ArrayList());
            ExprId id = NamedExpression$.MODULE$.newExprId();
            return new Alias(value, "c" + number, id, none, Option.empty(), none);
        }

        /** Gives a blob row of source -1 for each label: its partition is there, even if nothing is sent to it. */
        public LogicalPlan announcing(List labels) {
            StructType schema = new StructType()
                .add("p", DataTypes.IntegerType, true)
                .add("side", DataTypes.ByteType, true)
                .add("data", DataTypes.BinaryType, true);
            ArrayList rows = new ArrayList();
            for (int i = 0; i < labels.size(); i++) {
                rows.add(new GenericInternalRow(new Object[] {labels.get(i), Byte.valueOf((byte) -1), new byte[0]}));
            }
            return new LocalRelation(DataTypeUtils.toAttributes(schema), seq(rows), false, Option.empty());
        }

        /**
         * Puts stages of Python tasks, and what finishes their rows, in the place of a plan.
         *
         * @param described JSON of the stages, the columns and the aggregation
         * @param commands the pickled functions of all stages
         * @param broadcasts for each stage whose function is broadcast a list of its broadcasts, or null
         */
        public void place(
            int number, String described, byte[] commands, CollectionAccumulator accumulator, List broadcasts
        ) throws Exception {
            Map island = (Map) MAPPER.readValue(described, Map.class);
            Map python = (Map) island.get("python");
            Functions functions = new Functions(this, python, commands, accumulator, broadcasts);
            placeRows(number, island, functions.stage((Map) island.get("stage")));
        }

        /**
         * Puts rows that stages of Python tasks give, and what finishes them, in the place of a plan.
         *
         * @param described JSON of the columns and the aggregation
         */
        public void placeRows(int number, String described, LogicalPlan rows) throws Exception {
            placeRows(number, (Map) MAPPER.readValue(described, Map.class), rows);
        }

        private void placeRows(int number, Map island, LogicalPlan unsized) throws Exception {
            LogicalPlan rows = SizedRows.of(unsized, size(number, island, unsized.output()), session);
            Seq made = rows.output();
            List columns = (List) island.get("columns");
            ArrayList named = new ArrayList();
            for (int i = 0; i < columns.size(); i++) {
                Object like = columns.get(i);
                Attribute value = (Attribute) made.apply(i);
                named.add(like == null ? value : renamed(value, (Attribute) expression(like)));
            }
            LogicalPlan plan = new Project(seq(named), rows);
            if (island.get("aggregates") != null) {
                plan = finished(reading.plan(number), island, plan, made);
            }
            replace(number, plan.resolved() ? plan : Dataset.ofRows(session, plan).queryExecution().analyzed());
        }

        /**
         * The size of the rows that take a plan's place: as they are expected to have, or as Spark says of the plan.
         *
         * Of partial results it is such that Spark's aggregation over them has the size of the plan.
         */
        private Statistics size(int number, Map island, Seq columns) throws Exception {
            Object bytes = island.get("bytes");
            if (bytes != null) {
                return SizedRows.size(BigInt.apply(((Number) bytes).longValue()), Option.empty());
            }
            LogicalPlan node = reading.plan(number);
            try {
                Statistics known = node.stats();
                Option rows = island.get("aggregates") == null ? known.rowCount() : Option.empty();
                return SizedRows.size(SizedRows.scaled(known.sizeInBytes(), node.output(), columns), rows);
            } catch (RuntimeException unknown) { // sources outside of Spark may fail to say
                return SizedRows.size(BigInt.apply(session.sessionState().conf().defaultSizeInBytes()), Option.empty());
            }
        }

        /** Says that a plan has no rows. */
        public void empty(int number) {
            Seq columns = reading.plan(number).output();
            replace(number, new LocalRelation(columns, seq(new ArrayList()), false, Option.empty()));
        }

        /** The whole plan, without what is known to have no rows. */
        public LogicalPlan withoutEmpty(int root) {
            return PropagateEmptyRelation$.MODULE$.apply(current(root));
        }

        /** A plan as it is by now. */
        public LogicalPlan current(int number) {
            LogicalPlan known = (LogicalPlan) replaced.get(Integer.valueOf(number));
            if (known != null) {
                return known;
            }
            LogicalPlan node = reading.plan(number);
            LogicalPlan plan = node;
            int[] numbers = reading.children(number);
            ArrayList children = new ArrayList();
            boolean changed = false;
            for (int i = 0; i < numbers.length; i++) {
                LogicalPlan child = current(numbers[i]);
                changed |= child != reading.plan(numbers[i]);
                children.add(child);
            }
            if (changed) {
                plan = withOrder((LogicalPlan) node.withNewChildren(seq(children)));
            }
            HashMap entries = new HashMap();
            List subqueries = reading.subqueries(number);
            for (int i = 0; i < subqueries.size(); i++) {
                PlanExpression expression = (PlanExpression) ((Object[]) subqueries.get(i))[0];
                int root = ((Integer) ((Object[]) subqueries.get(i))[1]).intValue();
                LogicalPlan inner = current(root);
                if (inner != reading.plan(root)) {
                    entries.put(expression, expression.withNewPlan(inner));
                }
            }
            if (!entries.isEmpty()) {
                plan = (LogicalPlan) plan.transformExpressions(PythonUtils.toScalaMap(entries));
            }
            return plan;
        }

        Expression expression(Object number) {
            return reading.expression(((Integer) number).intValue());
        }

        private LogicalPlan finished(LogicalPlan node, Map island, LogicalPlan below, Seq made) {
            HashMap entries = new HashMap();
            List aggregates = (List) island.get("aggregates");
            for (int i = 0; i < aggregates.size(); i++) {
                Map call = (Map) aggregates.get(i);
                AggregateExpression aggregate = (AggregateExpression) expression(call.get("aggregate"));
                entries.put(aggregate, Finals.of(aggregate.aggregateFunction(), call, made));
            }
            List keys = (List) island.get("keys");
            for (int i = 0; i < keys.size(); i++) {
                List key = (List) keys.get(i);
                entries.put(expression(key.get(0)), made.apply(((Integer) key.get(1)).intValue()));
            }
            LogicalPlan plan = (LogicalPlan) node.withNewChildren(seq(Arrays.asList(new Object[] {below})));
            return (LogicalPlan) plan.transformExpressions(PythonUtils.toScalaMap(entries));
        }

        private static Alias renamed(Attribute value, Attribute like) {
            Option metadata = like.metadata().isEmpty() ? Option.empty() : new Some(like.metadata());
            boolean same = value.dataType().equals(like.dataType());
            Expression kept = same ? value : new Cast(value, like.dataType(), Option.empty(), EvalMode.LEGACY());
            return new Alias(kept, like.name(), like.exprId(), like.qualifier(), metadata, seq(new ArrayList()));
        }

        /**
         * Gives row numbers of a window without an order a constant one, without which Spark does not analyze them.
         *
         * Spark itself makes such windows: subqueries with LIMIT, decorrelated.
         */
        private static LogicalPlan withOrder(LogicalPlan plan) {
            if (!(plan instanceof Window) || !((Window) plan).orderSpec().isEmpty()) {
                return plan;
            }
            HashMap entries = new HashMap();
            Seq named = ((Window) plan).windowExpressions();
            for (int i = 0; i < named.size(); i++) {
                addOrders((Expression) named.apply(i), entries);
            }
            return entries.isEmpty() ? plan : (LogicalPlan) plan.transformExpressions(PythonUtils.toScalaMap(entries));
        }

        private static void addOrders(Expression node, HashMap entries) {
            if (node instanceof WindowExpression && ((WindowExpression) node).windowFunction() instanceof RowNumber) {
                WindowSpecDefinition spec = ((WindowExpression) node).windowSpec();
                Seq order = seq(Arrays.asList(new Object[] {ascending(Literal.TrueLiteral())}));
                entries.put(spec, spec.copy(spec.partitionSpec(), order, spec.frameSpecification()));
            }
            for (int i = 0; i < node.children().size(); i++) {
                addOrders((Expression) node.children().apply(i), entries);
            }
        }
    }

    /** The function of a stage's tasks, as Spark ships it to workers. */
    public static SimplePythonFunction pythonFunction(
        Map stage, Map python, byte[] commands, CollectionAccumulator accumulator, List broadcasts
    ) {
        List bounds = (List) stage.get("command");
        Object shared = stage.get("broadcasts");
        return new SimplePythonFunction(
            Arrays.copyOfRange(commands, integer(bounds.get(0)), integer(bounds.get(1))),
            (Map) python.get("environment"),
            (List) python.get("includes"),
            (String) python.get("executable"),
            (String) python.get("version"),
            shared == null ? new ArrayList() : (List) broadcasts.get(integer(shared)),
            accumulator);
    }

    /** Stages of Python tasks as mapInArrow makes them. */
    private static final class Functions {
        private final Rewriting rewriting;
        private final Map python;
        private final byte[] commands;
        private final CollectionAccumulator accumulator;
        private final List broadcasts;

        Functions(
            Rewriting rewriting, Map python, byte[] commands, CollectionAccumulator accumulator, List broadcasts
        ) {
            this.rewriting = rewriting;
            this.python = python;
            this.commands = commands;
            this.accumulator = accumulator;
            this.broadcasts = broadcasts;
        }

        LogicalPlan stage(Map stage) {
            int tasks = integer(stage.get("tasks"));
            List inputs = (List) stage.get("inputs");
            Map spark = (Map) stage.get("spark");
            LogicalPlan source = spark != null ? rows(spark)
                : inputs.isEmpty() ? numbers(tasks) : exchanged(inputs, (List) stage.get("announced"), tasks);
            SimplePythonFunction function = pythonFunction(stage, python, commands, accumulator, broadcasts);
            IslandFacts.describe(
                (String) stage.get("name"), (String) stage.get("operations"), rewriting.session.sparkContext());
            StructType schema = (StructType) DataType.fromJson((String) stage.get("schema"));
            PythonUDF called = new PythonUDF(
                (String) stage.get("name"), function, schema, source.output(), integer(python.get("kind")), true,
                NamedExpression$.MODULE$.newExprId());
            return new MapInArrow(called, DataTypeUtils.toAttributes(schema), source, false, Option.empty());
        }

        /** Some columns of a plan; with an order only the first of the rows with equal values in some columns. */
        private LogicalPlan rows(Map spark) {
            LogicalPlan plan = rewriting.rows(integer(spark.get("plan")), (List) spark.get("columns"));
            return spark.get("order") == null ? plan : first(plan, (List) spark.get("equal"), (List) spark.get("order"));
        }

        private LogicalPlan first(LogicalPlan plan, List equal, List order) {
            ArrayList same = new ArrayList();
            for (int i = 0; i < equal.size(); i++) {
                // Spark's own rule has run by now: -0.0 would be in another partition than 0.0.
                same.add(NormalizeFloatingNumbers$.MODULE$.normalize(
                    (Expression) plan.output().apply(integer(equal.get(i)))));
            }
            ArrayList sorted = new ArrayList();
            for (int i = 0; i < order.size(); i++) {
                List key = (List) order.get(i);
                boolean descending = ((Boolean) key.get(1)).booleanValue();
                boolean nullsFirst = ((Boolean) key.get(2)).booleanValue();
                sorted.add(new SortOrder(
                    (Expression) plan.output().apply(integer(key.get(0))),
                    descending ? (SortDirection) Descending$.MODULE$ : (SortDirection) Ascending$.MODULE$,
                    nullsFirst ? (NullOrdering) NullsFirst$.MODULE$ : (NullOrdering) NullsLast$.MODULE$,
                    seq(new ArrayList())));
            }
            WindowFrame frame = new SpecifiedWindowFrame(
                RowFrame$.MODULE$, UnboundedPreceding$.MODULE$, CurrentRow$.MODULE$);
            WindowSpecDefinition spec = new WindowSpecDefinition(seq(same), seq(sorted), frame);
            Seq none = seq(new ArrayList());
            Alias number = new Alias(
                new WindowExpression(new RowNumber(), spec), "number", NamedExpression$.MODULE$.newExprId(), none,
                Option.empty(), none);
            LogicalPlan numbered = window(seq(Arrays.asList(new Object[] {number})), seq(same), seq(sorted), plan);
            Expression one = Literal.create(Integer.valueOf(1), DataTypes.IntegerType);
            return new Project(plan.output(), new Filter(new EqualTo(number.toAttribute(), one), numbered));
        }

        /** A window; its constructor has got another argument, with a default, since Spark 4.0. */
        private static LogicalPlan window(Seq numbers, Seq same, Seq sorted, LogicalPlan plan) {
            try {
                Constructor made = Window.class.getConstructors()[0];
                Object[] given = {numbers, same, sorted, plan};
                Object[] arguments = Arrays.copyOf(given, made.getParameterCount());
                for (int i = given.length; i < arguments.length; i++) {
                    arguments[i] = Window.class.getMethod("apply$default$" + (i + 1), new Class[0]).invoke(null);
                }
                return (LogicalPlan) made.newInstance(arguments);
            } catch (Exception problem) {
                throw new IllegalStateException(problem);
            }
        }

        /** One row, its number, for each task. */
        private static LogicalPlan numbers(int tasks) {
            StructType schema = new StructType().add("id", DataTypes.LongType, false);
            return new Range(
                0L, (long) tasks, 1L, new Some(Integer.valueOf(tasks)), DataTypeUtils.toAttributes(schema), false);
        }

        /**
         * The blob rows of several stages, each in the partition of its label, by input.
         *
         * @param announced labels of the partitions that there must be, even if nothing is sent to them
         */
        private LogicalPlan exchanged(List inputs, List announced, int partitions) {
            ArrayList stages = new ArrayList();
            if (!announced.isEmpty()) {
                stages.add(rewriting.announcing(announced));
            }
            for (int i = 0; i < inputs.size(); i++) {
                stages.add(stage((Map) inputs.get(i)));
            }
            LogicalPlan rows = stages.size() == 1 ? (LogicalPlan) stages.get(0) : new Union(seq(stages), false, false);
            Expression label = (Expression) rows.output().apply(0);
            Expression place = (Expression) rows.output().apply(1);
            Seq by = seq(Arrays.asList(new Object[] {partitionOf(label)}));
            Option count = new Some(Integer.valueOf(partitions));
            LogicalPlan sent = new RepartitionByExpression(by, rows, count, Option.empty());
            Seq order = seq(Arrays.asList(new Object[] {ascending(label), ascending(place)}));
            return new Sort(order, false, sent, Option.empty());
        }

        private Expression partitionOf(Expression label) {
            if (!((Boolean) python.get("direct")).booleanValue()) {
                return label;
            }
            try { // Spark 4.0 has no such class
                Class direct = Class.forName("org.apache.spark.sql.catalyst.expressions.DirectShufflePartitionID");
                return (Expression) direct.getConstructors()[0].newInstance(new Object[] {label});
            } catch (Exception problem) {
                throw new IllegalStateException(problem);
            }
        }
    }

    /**
     * Expressions over partial results with the values of aggregates.
     *
     * An aggregate function of Spark says itself how its value follows from its buffers. Here only the merging of
     * buffers is written down, by functions of Spark's whose values are the merged buffers.
     */
    private static final class Finals {

        static Expression of(AggregateFunction function, Map call, Seq made) {
            List positions = (List) call.get("buffers");
            Expression[] buffers = new Expression[positions.size()];
            for (int i = 0; i < buffers.length; i++) {
                buffers[i] = (Expression) made.apply(integer(positions.get(i)));
            }
            String kind = (String) call.get("kind");
            if (kind.equals("unscaled")) {
                DataType type = DataTypes.createDecimalType(integer(call.get("precision")), integer(call.get("scale")));
                Expression total = new UnscaledValue(cast(sum(buffers[0]), type));
                return new If(allEmpty(buffers[1]), Literal.create(null, DataTypes.LongType), total);
            }
            if (kind.equals("again")) {
                return complete(over(function, new Expression[] {buffers[0]}), Option.empty());
            }
            Seq declared = function.aggBufferAttributes();
            Expression[] merged = merged(function, kind, call.get("overflows") == Boolean.TRUE, buffers);
            HashMap entries = new HashMap();
            for (int i = 0; i < merged.length; i++) {
                entries.put(declared.apply(i), merged[i]);
            }
            Expression value = ((DeclarativeAggregate) function).evaluateExpression();
            return (Expression) value.transform(PythonUtils.toScalaMap(entries));
        }

        private static Expression[] merged(
            AggregateFunction function, String kind, boolean overflows, Expression[] buffers
        ) {
            if (kind.equals("count")) {
                return new Expression[] {counted(buffers[0])};
            }
            if (kind.equals("average")) {
                return new Expression[] {sum(buffers[0]), counted(buffers[1])};
            }
            if (kind.equals("folded")) {
                return folded((DeclarativeAggregate) function, buffers);
            }
            if (kind.equals("edge")) {
                Expression taken = complete(over(function, new Expression[] {buffers[0]}), new Some(buffers[1]));
                return new Expression[] {taken, complete(new Max(buffers[1]), Option.empty())};
            }
            if (kind.equals("other")) {
                return new Expression[] {complete(over(function, buffers), Option.empty())};
            }
            DataType type = ((Attribute) function.aggBufferAttributes().apply(0)).dataType();
            if (kind.equals("try sum")) {
                Expression merged = complete(over(function, new Expression[] {buffers[0]}), Option.empty());
                Expression total = nullWhere(buffers[0], new Not(buffers[1]), merged);
                return new Expression[] {total, allEmpty(buffers[1])};
            }
            if (kind.equals("decimal average")) {
                Expression seen = new GreaterThan(buffers[1], zero());
                return new Expression[] {total(buffers[0], seen, type, overflows), counted(buffers[1])};
            }
            if (kind.equals("decimal sum")) {
                Expression seen = new Not(buffers[1]);
                return new Expression[] {total(buffers[0], seen, type, overflows), allEmpty(buffers[1])};
            }
            throw new IllegalArgumentException(kind);
        }

        private static AggregateFunction over(AggregateFunction function, Expression[] children) {
            return (AggregateFunction) function.withNewChildren(seq(Arrays.asList((Object[]) children)));
        }

        /**
         * Buffers merged two by two as Spark merges them, for functions whose merging is no function of Spark's.
         *
         * With the buffers n and avg this is an expression like aggregate(collect_list(named_struct('b0', n, 'b1',
         * avg)), named_struct('b0', 0.0, 'b1', 0.0), (a, b) -> named_struct('b0', a.b0 + b.b0, 'b1', ...)).
         */
        private static Expression[] folded(DeclarativeAggregate function, Expression[] buffers) {
            Expression parsed = new CatalystSqlParser().parseExpression(
                "aggregate(collect_list(" + struct("buffer", buffers.length) + "), "
                    + struct("initial", buffers.length) + ", (a, b) -> " + struct("merged", buffers.length) + ")"
            );
            HashMap sides = new HashMap();
            HashMap entries = new HashMap();
            for (int i = 0; i < buffers.length; i++) {
                sides.put(function.aggBufferAttributes().apply(i), field(variable("a"), i));
                sides.put(function.inputAggBufferAttributes().apply(i), field(variable("b"), i));
                entries.put(UnresolvedAttribute.quoted("gpujoin_buffer" + i), buffers[i]);
                entries.put(UnresolvedAttribute.quoted("gpujoin_initial" + i), function.initialValues().apply(i));
            }
            for (int i = 0; i < buffers.length; i++) {
                Expression merged = (Expression) function.mergeExpressions().apply(i);
                entries.put(variable("gpujoin_merged" + i), merged.transform(PythonUtils.toScalaMap(sides)));
            }
            Expression value = (Expression) parsed.transform(PythonUtils.toScalaMap(entries));
            Expression[] parts = new Expression[buffers.length];
            for (int i = 0; i < parts.length; i++) {
                parts[i] = field(value, i);
            }
            return parts;
        }

        /** SQL text of a struct of placeholders. */
        private static String struct(String kind, int size) {
            StringBuilder text = new StringBuilder();
            for (int i = 0; i < size; i++) {
                text.append(i == 0 ? "" : ", ").append("'b" + i + "', gpujoin_" + kind + i);
            }
            return "named_struct(" + text + ")";
        }

        private static Expression variable(String name) {
            return new UnresolvedNamedLambdaVariable(seq(Arrays.asList(new Object[] {name})));
        }

        private static Expression field(Expression struct, int number) {
            return new UnresolvedExtractValue(struct, Literal.create("b" + number, DataTypes.StringType));
        }

        private static Expression complete(AggregateFunction function, Option filter) {
            return function.toAggregateExpression(false, filter);
        }

        private static Expression sum(Expression value) {
            return complete(new Sum(value), Option.empty());
        }

        private static Expression cast(Expression value, DataType type) {
            return new Cast(value, type, Option.empty(), EvalMode.LEGACY());
        }

        /** Whether no partial result saw a value; there may be no partial result. */
        private static Expression allEmpty(Expression isEmpty) {
            Expression smallest = complete(new Min(isEmpty), Option.empty());
            return new Coalesce(seq(Arrays.asList(new Object[] {smallest, Literal.TrueLiteral()})));
        }

        private static Expression zero() {
            return Literal.create(Long.valueOf(0L), DataTypes.LongType);
        }

        private static Expression counted(Expression count) {
            return new Coalesce(seq(Arrays.asList(new Object[] {sum(count), zero()})));
        }

        /** A decimal sum; null if any partial sum is null although it had values. */
        private static Expression total(Expression total, Expression seen, DataType type, boolean overflows) {
            Expression merged = cast(sum(total), type);
            return overflows ? nullWhere(total, seen, merged) : merged;
        }

        /** A merged sum; null if any partial sum is null although it had values. */
        private static Expression nullWhere(Expression partial, Expression seen, Expression merged) {
            Expression overflowed = complete(new Max(new And(new IsNull(partial), seen)), Option.empty());
            return new If(overflowed, Literal.create(null, merged.dataType()), merged);
        }
    }

    private static SortOrder ascending(Expression value) {
        return new SortOrder(value, Ascending$.MODULE$, NullsFirst$.MODULE$, seq(new ArrayList()));
    }

    private static int integer(Object value) {
        return ((Integer) value).intValue();
    }

    private static Seq seq(List values) {
        return PythonUtils.toSeq(values);
    }
}

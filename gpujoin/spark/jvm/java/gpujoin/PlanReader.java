package gpujoin;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.zip.Deflater;
import java.util.zip.DeflaterOutputStream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.catalog.CatalogColumnStat;
import org.apache.spark.sql.catalyst.catalog.CatalogStatistics;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.InSet;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.PlanExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.PivotFirst;
import org.apache.spark.sql.catalyst.expressions.objects.Invoke;
import org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke;
import org.apache.spark.sql.catalyst.plans.ExistenceJoin;
import org.apache.spark.sql.catalyst.plans.logical.EventTimeWatermark;
import org.apache.spark.sql.catalyst.plans.logical.HintInfo;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.JoinHint;
import org.apache.spark.sql.catalyst.plans.logical.JoinStrategyHint;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Statistics;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.datasources.CatalogFileIndex;
import org.apache.spark.sql.execution.datasources.FileIndex;
import org.apache.spark.sql.execution.datasources.FileStatusWithMetadata;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.InMemoryFileIndex;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.execution.datasources.PartitionDirectory;
import org.apache.spark.sql.execution.datasources.PartitionPath;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.CalendarInterval;
import org.apache.spark.unsafe.types.UTF8String;
import scala.Option;
import scala.Product;
import scala.Tuple2;
import scala.collection.Iterator;
import scala.collection.immutable.ArraySeq;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Reads plans and expressions as JSON, so that Python asks once for all that planning may want to know of them.
 *
 * A tree is a list of rows, parents first: the constructor's arguments by name, and what the node says of itself under
 * names that begin with @. An attribute is a number of a table, as each occurs many times; so is a type.
 */
public final class PlanReader {
    /** How many of the places of a relation are told, for people. */
    private static final int MOST_PATHS = 2;
    /** By which Spark marks a column of sessions: an aggregation by it merges those that touch. */
    private static final String SESSION = "spark.sessionWindow";
    /** How many values of a relation that has its rows itself are told; each task is sent them with its plan. */
    private static final int MOST_VALUES = 10000;

    /** Reads a plan with all plans in its expressions. */
    public Reading plan(LogicalPlan plan) {
        Reading reading = new Reading();
        reading.writePlan(plan);
        return reading;
    }

    /** Reads one expression. */
    public Reading expression(Expression expression) {
        Reading reading = new Reading();
        reading.writeValue(CollectionConverters.asScala(Arrays.asList(new Object[] {expression})).toSeq());
        return reading;
    }

    /**
     * Gives a session's settings as JSON, deflated, in base64.
     *
     * Of those with a default that planning depends on it also has the ones that are not set, and as
     * spark.default.parallelism how many tasks run at once.
     */
    public String settings(SparkSession session, String defaults) throws IOException {
        HashMap settings = new HashMap();
        Iterator entries = session.conf().getAll().iterator();
        while (entries.hasNext()) {
            Tuple2 entry = (Tuple2) entries.next();
            settings.put(entry._1(), entry._2());
        }
        for (Object name : defaults.split(",")) {
            Option value = session.conf().getOption((String) name);
            if (value.isDefined()) {
                settings.put(name, value.get());
            }
        }
        settings.put("spark.default.parallelism", String.valueOf(session.sparkContext().defaultParallelism()));
        Reading reading = new Reading();
        reading.writeTexts(settings);
        return reading.deflated();
    }

    /** Gives what PySpark has pickled of a function, and what it was made for, as JSON, deflated, in base64. */
    public String pythonFunction(PythonFunction function) throws IOException {
        HashMap facts = new HashMap();
        facts.put("python", function.pythonExec());
        facts.put("version", function.pythonVer());
        facts.put("environment", function.envVars());
        facts.put("files", function.pythonIncludes());
        facts.put("broadcasts", Integer.valueOf(function.broadcastVars().size()));
        facts.put("command", Base64.getEncoder().encodeToString((byte[]) ((ArraySeq) function.command()).unsafeArray()));
        Reading reading = new Reading();
        reading.writePlain(facts);
        return reading.deflated();
    }

    /** Gives the rule of gpujoin that the optimizer of a session was given; null where it has none. */
    public Object rule(SparkSession session) {
        Iterator rules = session.experimental().extraOptimizations().iterator();
        while (rules.hasNext()) {
            Object rule = rules.next();
            if (rule.getClass().getName().equals("gpujoin.PythonRule")) {
                return rule;
            }
        }
        return null;
    }

    /** What was read, and the objects that it was read of, by number. */
    public static final class Reading {
        private final ArrayList plans = new ArrayList();
        private final ArrayList children = new ArrayList();
        private final ArrayList subqueries = new ArrayList();
        private final ArrayList different = new ArrayList();
        private final ArrayList expressions = new ArrayList();
        private final ArrayList attributes = new ArrayList();
        private final HashMap attributeNumbers = new HashMap();
        private final ArrayList types = new ArrayList();
        private final Determinism determinism = new Determinism();
        private final HashMap typeNumbers = new HashMap();
        private final HashMap openers = new HashMap();
        private final StringBuilder text = new StringBuilder();
        private ArrayList owned = new ArrayList();
        private String packed;
        private int given;

        /** The first part of the JSON, deflated, in base64, of at most some characters; what is left comes from more(). */
        public String data(int most) throws IOException {
            String rows = text.toString();
            text.setLength(0);
            text.append("{\"rows\":").append(rows).append(",\"attributes\":[");
            for (int i = 0; i < attributes.size(); i++) {
                comma(i);
                writeAttribute((Attribute) attributes.get(i));
            }
            text.append("],\"types\":[");
            for (int i = 0; i < types.size(); i++) {
                comma(i);
                DataType type = (DataType) types.get(i);
                text.append('[');
                quote(type.json());
                text.append(',');
                quote(type.catalogString());
                text.append(']');
            }
            text.append("]}");
            packed = deflated();
            return more(most);
        }

        /** The next part, which is shorter if it is the last. */
        public String more(int most) {
            String part = packed.substring(given, Math.min(packed.length(), given + most));
            given += part.length();
            return part;
        }

        public LogicalPlan plan(int number) {
            return (LogicalPlan) plans.get(number);
        }

        /** Numbers of a plan's children. */
        public int[] children(int number) {
            return (int[]) children.get(number);
        }

        /** Each expression of a plan that holds a plan, and that plan's number. */
        public List subqueries(int number) {
            return (List) subqueries.get(number);
        }

        public Expression expression(int number) {
            return (Expression) expressions.get(number);
        }

        /** Numbers an expression that was made of others that were read. */
        public int add(Expression expression) {
            expressions.add(expression);
            return expressions.size() - 1;
        }

        /**
         * Lists the files of a relation, and its partitions; a table of Spark's catalog lists them now.
         *
         * @param conditions numbers of expressions by which Spark chooses among the partitions, separated by commas
         */
        public String files(int number, String conditions) throws Exception {
            ArrayList chosen = new ArrayList();
            if (!conditions.isEmpty()) {
                for (Object part : conditions.split(",")) {
                    chosen.add(expression(Integer.parseInt((String) part)));
                }
            }
            text.setLength(0);
            HadoopFsRelation relation = (HadoopFsRelation) ((LogicalRelation) plan(number)).relation();
            if (DeltaFiles.isDelta(relation)) {
                writePlain(new DeltaFiles(relation).facts(chosen));
            } else {
                writeFiles(relation, chosen);
            }
            return deflated();
        }

        /** Tells what a scan of Iceberg reads, which is planned anew by each call. */
        public String icebergFiles(int number) throws Exception {
            IcebergScan scan = new IcebergScan(((DataSourceV2ScanRelation) plan(number)).scan());
            text.setLength(0);
            writePlain(scan.facts());
            openers.put(Integer.valueOf(number), scan);
            return deflated();
        }

        /** Hadoop's configuration by which the files of a scan of Iceberg are opened, once they are told; or null. */
        public Configuration opener(int number) {
            return ((IcebergScan) openers.get(Integer.valueOf(number))).configuration();
        }

        /** What Iceberg was told where it opens those files by itself, secrets included. */
        public String openerProperties(int number) throws Exception {
            text.setLength(0);
            writePlain(((IcebergScan) openers.get(Integer.valueOf(number))).properties());
            return deflated();
        }

        /** Writes maps, lists, texts, numbers, and values as Spark holds them. */
        private void writePlain(Object value) {
            if (value instanceof Map) {
                text.append('{');
                int count = 0;
                for (Object each : ((Map) value).entrySet()) {
                    comma(count++);
                    quote((String) ((Map.Entry) each).getKey());
                    text.append(':');
                    writePlain(((Map.Entry) each).getValue());
                }
                text.append('}');
            } else if (value instanceof List) {
                text.append('[');
                int count = 0;
                for (Object each : (List) value) {
                    comma(count++);
                    writePlain(each);
                }
                text.append(']');
            } else if (value instanceof String) {
                quote((String) value);
            } else {
                writeInternal(value);
            }
        }

        void writeTexts(Map texts) {
            text.append('{');
            int count = 0;
            for (Object entry : texts.entrySet()) {
                comma(count++);
                quote((String) ((Map.Entry) entry).getKey());
                text.append(':');
                quote((String) ((Map.Entry) entry).getValue());
            }
            text.append('}');
        }

        String deflated() throws IOException {
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            DeflaterOutputStream sink = new DeflaterOutputStream(bytes, new Deflater(Deflater.BEST_SPEED));
            sink.write(text.toString().getBytes(StandardCharsets.UTF_8));
            sink.close();
            text.setLength(0);
            return Base64.getEncoder().encodeToString(bytes.toByteArray());
        }

        /** Writes a plan; gives its number. */
        int writePlan(LogicalPlan plan) {
            ArrayList outer = owned;
            text.append('[');
            int number = writePlanRows(plan);
            text.append(']');
            owned = outer;
            return number;
        }

        private int writePlanRows(LogicalPlan plan) {
            int number = plans.size();
            Seq below = plan.children();
            int[] numbers = new int[below.size()];
            begin(plan, numbers.length, number);
            plans.add(plan);
            children.add(numbers);
            owned = new ArrayList();
            subqueries.add(owned);
            if (!plan.deterministic()) {
                text.append(",\"@deterministic\":false");
            }
            if (!plan.subqueries().isEmpty()) {
                text.append(",\"@subqueries\":true");
            }
            if (plan.isStreaming()) {
                text.append(",\"@streaming\":true");
            }
            if (plan.resolved()) {
                text.append(",\"@output\":");
                writeValue(plan.output());
                text.append(",\"@size\":");
                writeSize(plan);
            }
            field("@level");
            quote(determinism.of(plan));
            if (plan instanceof Join) {
                writeHint(GpuJoinHint.of((Join) plan));
                writeHints(((Join) plan).hint());
            }
            if (plan instanceof GpuJoinHint.Marked) {
                writeHint(((GpuJoinHint.Marked) plan).hint());
            }
            if (plan instanceof LogicalRelation) {
                writeRelation((LogicalRelation) plan);
            }
            if (plan instanceof DataSourceV2ScanRelation) {
                writeScan((DataSourceV2ScanRelation) plan);
            }
            if (plan instanceof LocalRelation && !plan.isStreaming()) {
                writeRows((LocalRelation) plan);
            }
            writeFields((Product) plan);
            text.append('}');
            for (int i = 0; i < numbers.length; i++) {
                text.append(',');
                numbers[i] = writePlanRows((LogicalPlan) below.apply(i));
            }
            return number;
        }

        private void writeExpression(Expression expression) {
            if (expression instanceof Attribute && expression.resolved()) {
                text.append(attributeNumber((Attribute) expression));
                return;
            }
            Seq children = expression.children();
            begin(expression, children.size(), expressions.size());
            expressions.add(expression);
            if (!expression.deterministic()) {
                text.append(",\"@deterministic\":false");
            }
            if (expression.resolved()) {
                writeType(expression);
            }
            if (expression instanceof Literal) {
                Object value = ((Literal) expression).value();
                field("value");
                writeText(value);
                field("@value");
                writeLiteral(value, expression.dataType());
                field("dataType");
                text.append(expression.dataType().json());
            } else {
                writeFields((Product) expression);
            }
            writeName(expression);
            if (expression instanceof Alias) { // not among the arguments that a case class tells of
                field("exprId");
                writeValue(((Alias) expression).exprId());
            }
            text.append('}');
            for (int i = 0; i < children.size(); i++) {
                text.append(',');
                writeExpression((Expression) children.apply(i));
            }
        }

        /** What a query calls a function, where it is not the name of the class; of a cast, whether a query asks for it. */
        private void writeName(Expression expression) {
            if (expression instanceof Cast) {
                if (expression.getTagValue(Cast.USER_SPECIFIED_CAST()).isDefined()) {
                    text.append(",\"@explicit\":true");
                }
                return;
            }
            String name = expression.prettyName();
            if (expression instanceof StaticInvoke) {
                name = ((StaticInvoke) expression).staticObject().getName();
            } else if (expression instanceof Invoke && ((Invoke) expression).targetObject() instanceof Literal) {
                name = ((Literal) ((Invoke) expression).targetObject()).value().getClass().getName();
            }
            if (!name.equals(expression.nodeName().toLowerCase(Locale.ROOT))) {
                field("@called");
                quote(name);
            }
        }

        /** The rows of a relation that has them itself, if they are few. */
        private void writeRows(LocalRelation relation) {
            Seq rows = relation.data();
            StructField[] columns = relation.schema().fields();
            if ((long) rows.size() * Math.max(1, columns.length) > MOST_VALUES) {
                return;
            }
            field("@rows");
            text.append('[');
            Iterator each = rows.iterator();
            for (int n = 0; each.hasNext(); n++) {
                comma(n);
                writeLiteral(each.next(), relation.schema());
            }
            text.append(']');
        }

        /** An internal value; of an array or a struct, the values in it; of a map, those of its keys and of its values. */
        private void writeLiteral(Object value, DataType type) {
            if (value instanceof ArrayData && type instanceof ArrayType) {
                ArrayData elements = (ArrayData) value;
                DataType elementType = ((ArrayType) type).elementType();
                text.append('[');
                for (int n = 0; n < elements.numElements(); n++) {
                    comma(n);
                    writeLiteral(elements.isNullAt(n) ? null : elements.get(n, elementType), elementType);
                }
                text.append(']');
            } else if (value instanceof MapData && type instanceof MapType) {
                text.append('[');
                writeLiteral(((MapData) value).keyArray(), new ArrayType(((MapType) type).keyType(), false));
                text.append(',');
                writeLiteral(((MapData) value).valueArray(), new ArrayType(((MapType) type).valueType(), true));
                text.append(']');
            } else if (value instanceof InternalRow && type instanceof StructType) {
                InternalRow row = (InternalRow) value;
                StructField[] fields = ((StructType) type).fields();
                text.append('[');
                for (int n = 0; n < fields.length; n++) {
                    comma(n);
                    writeLiteral(row.isNullAt(n) ? null : row.get(n, fields[n].dataType()), fields[n].dataType());
                }
                text.append(']');
            } else {
                writeInternal(value);
            }
        }

        /** The type, and whether there may be nulls, of what has them: a sort order has none, a list of a subquery no nulls. */
        private void writeType(Expression expression) {
            int length = text.length();
            try {
                text.append(",\"@type\":").append(typeNumber(expression.dataType()));
                length = text.length();
                text.append(",\"@nullable\":").append(expression.nullable());
            } catch (Exception none) {
                text.setLength(length);
            } catch (AssertionError none) {
                text.setLength(length);
            }
        }

        private void writeAttribute(Attribute attribute) {
            begin(attribute, 0, expressions.size());
            expressions.add(attribute);
            writeType(attribute);
            field("name");
            quote(attribute.name());
            field("dataType");
            text.append(attribute.dataType().json());
            text.append(",\"nullable\":").append(attribute.nullable());
            field("exprId");
            writeValue(attribute.exprId());
            if (attribute.metadata().contains(EventTimeWatermark.delayKey())) {
                text.append(",\"@event_time\":true");
            }
            if (attribute.metadata().contains(SESSION)) {
                text.append(",\"@session\":true");
            }
            text.append('}');
        }

        private int attributeNumber(Attribute attribute) {
            return numberIn(attributes, attributeNumbers, attribute);
        }

        private int typeNumber(DataType type) {
            return numberIn(types, typeNumbers, type);
        }

        private static int numberIn(ArrayList table, HashMap numbers, Object value) {
            Object known = numbers.get(value);
            if (known != null) {
                return ((Integer) known).intValue();
            }
            numbers.put(value, Integer.valueOf(table.size()));
            table.add(value);
            return table.size() - 1;
        }

        private void begin(Object node, int children, int number) {
            text.append("{\"class\":");
            quote(node.getClass().getName());
            text.append(",\"@number\":").append(number).append(",\"num-children\":").append(children);
        }

        /** The constructor's arguments that are no children. */
        private void writeFields(Product node) {
            for (int i = 0; i < node.productArity(); i++) {
                Object value = node.productElement(i);
                String name = node.productElementName(i);
                if (node instanceof InSet && name.equals("hset")) {
                    field("@values");
                    text.append('[');
                    Iterator values = ((InSet) node).hset().iterator();
                    for (int n = 0; values.hasNext(); n++) {
                        comma(n);
                        writeInternal(values.next());
                    }
                    text.append(']');
                } else if (node instanceof PivotFirst && name.equals("pivotColumnValues")) {
                    field("@values");
                    text.append('[');
                    Seq values = (Seq) value;
                    for (int n = 0; n < values.size(); n++) {
                        comma(n);
                        writeInternal(values.apply(n));
                    }
                    text.append(']');
                } else if (node instanceof PlanExpression && name.equals("plan")) {
                    field(name);
                    LogicalPlan inner = (LogicalPlan) value;
                    int number = writePlan(inner);
                    owned.add(new Object[] {node, Integer.valueOf(number)});
                    field("@first");
                    text.append(firstLike(inner, number));
                } else if (!isChild(node, value)) {
                    field(name);
                    writeValue(value);
                }
            }
        }

        /** The number of the first subquery with the same rows, as Spark tells: that of the given one, if there is none. */
        private int firstLike(LogicalPlan plan, int number) {
            for (int i = 0; plan.deterministic() && i < different.size(); i++) {
                LogicalPlan other = plan(((Integer) different.get(i)).intValue());
                if (other.deterministic() && other.sameResult(plan)) {
                    return ((Integer) different.get(i)).intValue();
                }
            }
            different.add(Integer.valueOf(number));
            return number;
        }

        private static boolean isChild(Product node, Object value) {
            if (node instanceof LogicalPlan) {
                return value instanceof LogicalPlan;
            }
            if (value instanceof Seq && !((Seq) value).isEmpty()) {
                value = ((Seq) value).head();
            }
            return value instanceof Expression && ((Expression) node).containsChild().contains((Expression) value);
        }

        void writeValue(Object value) {
            if (value instanceof Expression) {
                text.append('[');
                writeExpression((Expression) value);
                text.append(']');
            } else if (value instanceof Boolean || value instanceof Number) {
                writeNumber(value);
            } else if (value instanceof String || value instanceof Character || value instanceof scala.Enumeration$Value) {
                quote(value.toString());
            } else if (value instanceof DataType) {
                text.append(((DataType) value).json());
            } else if (value instanceof ExprId) {
                text.append("{\"id\":").append(((ExprId) value).id()).append('}');
            } else if (value instanceof ExistenceJoin) {
                text.append("{\"exists\":").append(((ExistenceJoin) value).exists().exprId().id()).append('}');
            } else if (value instanceof Option) {
                writeValue(((Option) value).isDefined() ? ((Option) value).get() : null);
            } else if (value instanceof Seq) {
                writeSequence((Seq) value);
            } else if (value != null && value.getClass().getName().endsWith("$")) {
                text.append("{\"object\":");
                quote(value.getClass().getName());
                text.append('}');
            } else if (value instanceof Product && isContext(value.getClass().getSimpleName())) {
                text.append('{');
                for (int i = 0; i < ((Product) value).productArity(); i++) {
                    comma(i);
                    quote(((Product) value).productElementName(i));
                    text.append(':');
                    writeValue(((Product) value).productElement(i));
                }
                text.append('}');
            } else {
                text.append("null");
            }
        }

        private static boolean isContext(String name) {
            return name.endsWith("EvalContext") || name.equals("CommonExpressionId");
        }

        /** Expressions, strings, or sequences of them; not rows. Attributes alone are their numbers. */
        private void writeSequence(Seq values) {
            if (!values.isEmpty() && !isReadable(values.apply(0))) {
                text.append("null");
                return;
            }
            text.append('[');
            for (int i = 0; i < values.size(); i++) {
                comma(i);
                Object value = values.apply(i);
                if (value instanceof Attribute && ((Attribute) value).resolved()) {
                    writeExpression((Expression) value);
                } else {
                    writeValue(value);
                }
            }
            text.append(']');
        }

        private static boolean isReadable(Object value) {
            return value instanceof Expression || value instanceof String || value instanceof Seq;
        }

        /** What gpu_join was asked for, by the names of its parameters; nothing of a join that it did not make. */
        private void writeHint(GpuJoinHint hint) {
            if (hint != null) {
                HashMap asked = new HashMap();
                if (hint.asked() != null) {
                    asked.put("strategy", hint.asked());
                }
                if (hint.backend() != null) {
                    asked.put("backend", hint.backend());
                }
                field("@gpu_join");
                writeTexts(asked);
            }
        }

        /** The user's strategy hints on the left and the right side of a join; nothing where there are none. */
        private void writeHints(JoinHint hints) {
            String left = strategyOf(hints.leftHint());
            String right = strategyOf(hints.rightHint());
            if (left != null || right != null) {
                field("@hints");
                text.append('[');
                quote(left == null ? "" : left);
                text.append(',');
                quote(right == null ? "" : right);
                text.append(']');
            }
        }

        private static String strategyOf(Option hint) {
            Option strategy = hint.isDefined() ? ((HintInfo) hint.get()).strategy() : hint;
            return strategy.isDefined() ? ((JoinStrategyHint) strategy.get()).displayName() : null;
        }

        private void writeSize(LogicalPlan plan) {
            int length = text.length();
            try {
                Statistics stats = plan.stats();
                String rows = stats.rowCount().isDefined() ? stats.rowCount().get().toString() : "null";
                text.append('[').append(stats.sizeInBytes().toString()).append(',').append(rows).append(',');
                text.append(plan.schema().defaultSize()).append(']');
            } catch (Exception unknown) {
                text.setLength(length);
                text.append("[null,null,0]");
            }
        }

        /** Writes what a scan of a data source is of. */
        private void writeScan(DataSourceV2ScanRelation node) {
            field("@scan");
            text.append("{\"class\":");
            quote(node.scan().getClass().getName());
            field("table");
            String name = "";
            try {
                name = (String) called(called(node, "relation"), "name");
            } catch (Exception unknown) {
                name = node.scan().description();
            }
            quote(name);
            text.append('}');
        }

        private void writeRelation(LogicalRelation node) {
            field("@relation");
            text.append("{\"class\":");
            quote(node.relation().getClass().getName());
            if (node.catalogTable().isDefined()) {
                field("table");
                quote(((CatalogTable) node.catalogTable().get()).identifier().unquotedString());
                writeStatistics(((CatalogTable) node.catalogTable().get()).stats());
            }
            if (node.relation() instanceof HadoopFsRelation) {
                HadoopFsRelation relation = (HadoopFsRelation) node.relation();
                field("format");
                quote(relation.fileFormat().getClass().getName());
                if (isDerived(relation)) {
                    field("derived");
                    text.append(true);
                    field("obstacle");
                    quote(obstacle(relation.fileFormat()));
                }
                field("paths");
                text.append('[');
                Seq paths = relation.location().rootPaths();
                for (int i = 0; i < Math.min(MOST_PATHS, paths.size()); i++) {
                    comma(i);
                    quote(((Path) paths.apply(i)).toUri().getPath());
                }
                text.append(']');
                field("options");
                text.append('[');
                Iterator names = relation.options().keysIterator();
                for (int i = 0; names.hasNext(); i++) {
                    comma(i);
                    quote((String) names.next());
                }
                text.append(']');
                field("schema");
                text.append(relation.dataSchema().json());
                field("partitions");
                text.append(relation.partitionSchema().json());
                field("index");
                quote(relation.location().getClass().getName());
                if (isListed(relation)) {
                    field("listing");
                    writeFiles(relation, new ArrayList());
                }
            }
            text.append('}');
        }

        /** Writes what ANALYZE TABLE has counted: rows, and different values of columns. */
        private void writeStatistics(Option stats) {
            if (stats.isEmpty()) {
                return;
            }
            CatalogStatistics known = (CatalogStatistics) stats.get();
            field("statistics");
            text.append("{\"rows\":");
            text.append(known.rowCount().isDefined() ? known.rowCount().get().toString() : "null");
            field("distinct");
            text.append('{');
            Iterator columns = known.colStats().iterator();
            int count = 0;
            while (columns.hasNext()) {
                Tuple2 column = (Tuple2) columns.next();
                Option distinct = ((CatalogColumnStat) column._2()).distinctCount();
                if (distinct.isDefined()) {
                    comma(count++);
                    quote((String) column._1());
                    text.append(':').append(distinct.get().toString());
                }
            }
            text.append("}}");
        }

        /** Whether all its files are known already, and may be read as a whole. */
        private static boolean isListed(HadoopFsRelation relation) {
            return relation.fileFormat().getClass() == ParquetFileFormat.class
                && relation.location().getClass() == InMemoryFileIndex.class
                && relation.partitionSchema().isEmpty();
        }

        /** Whether its format is one of another package that reads Parquet files. */
        private static boolean isDerived(HadoopFsRelation relation) {
            Object format = relation.fileFormat();
            return format instanceof ParquetFileFormat && format.getClass() != ParquetFileFormat.class;
        }

        /** What a format says of its files that keeps others from reading them, by the methods of Delta's; or nothing. */
        private static String obstacle(Object format) {
            try {
                Object mapping = called(format, "columnMappingMode");
                if (mapping != null && !"none".equals(called(mapping, "name"))) {
                    return "its columns have other names in its files";
                }
                return Boolean.TRUE.equals(called(format, "hasTablePath")) ? "its files have deleted rows" : "";
            } catch (Exception unknown) {
                return "its format does not say how its files are read";
            }
        }

        /** What a method of an object gives; null: there is no such method. */
        private static Object called(Object object, String name) throws Exception {
            java.lang.reflect.Method method;
            try {
                method = object.getClass().getMethod(name, new Class[0]);
            } catch (NoSuchMethodException none) {
                return null;
            }
            method.setAccessible(true);
            return method.invoke(object, new Object[0]);
        }

        /** Writes the files that the list of a format of another package has, with the values of their folders. */
        private void writeDerivedFiles(FileIndex location, Seq chosen) {
            Seq none = CollectionConverters.asScala(new ArrayList()).toSeq();
            HashMap folders = new HashMap();
            String obstacle = "";
            field("files");
            text.append('[');
            int count = 0;
            for (Iterator directories = location.listFiles(chosen, none).iterator(); directories.hasNext();) {
                PartitionDirectory directory = (PartitionDirectory) directories.next();
                for (Iterator files = directory.files().iterator(); files.hasNext();) {
                    FileStatusWithMetadata file = (FileStatusWithMetadata) files.next();
                    comma(count++);
                    writeFile(file.fileStatus());
                    if (!file.metadata().isEmpty()) {
                        obstacle = "its list of files has more to say of a file than where it is";
                    }
                    String folder = file.getPath().getParent().toString();
                    Object before = folders.put(folder, directory.values());
                    if (before != null && !before.equals(directory.values())) {
                        obstacle = "a folder has files of several partitions";
                    }
                }
            }
            text.append(']');
            field("obstacle");
            quote(obstacle);
            field("folders");
            text.append('{');
            count = 0;
            for (java.util.Iterator each = folders.entrySet().iterator(); each.hasNext();) {
                Map.Entry folder = (Map.Entry) each.next();
                comma(count++);
                writeFolder((String) folder.getKey(), (InternalRow) folder.getValue(), location.partitionSchema());
            }
            text.append('}');
        }

        private void writeFolder(String path, InternalRow values, StructType schema) {
            StructField[] fields = schema.fields();
            quote(path);
            text.append(":[");
            for (int i = 0; i < fields.length; i++) {
                comma(i);
                writeInternal(values.isNullAt(i) ? null : values.get(i, fields[i].dataType()));
            }
            text.append(']');
        }

        private void writeFiles(HadoopFsRelation relation, ArrayList conditions) {
            FileIndex location = relation.location();
            Seq none = CollectionConverters.asScala(new ArrayList()).toSeq();
            if (location.getClass() == CatalogFileIndex.class) {
                location = ((CatalogFileIndex) location).filterPartitions(none);
            }
            text.append("{\"index\":");
            quote(location.getClass().getName());
            Seq chosen = CollectionConverters.asScala(conditions).toSeq();
            if (isDerived(relation)) {
                writeDerivedFiles(location, chosen);
            } else if (location.getClass() == InMemoryFileIndex.class) {
                field("files");
                text.append('[');
                Iterator directories = location.listFiles(chosen, none).iterator();
                int count = 0;
                while (directories.hasNext()) {
                    Iterator files = ((PartitionDirectory) directories.next()).files().iterator();
                    while (files.hasNext()) {
                        comma(count++);
                        writeFile(((FileStatusWithMetadata) files.next()).fileStatus());
                    }
                }
                text.append(']');
                StructType schema = location.partitionSchema();
                if (!schema.isEmpty()) {
                    writeFolders(((InMemoryFileIndex) location).partitionSpec().partitions().iterator(), schema);
                }
            }
            text.append('}');
        }

        private void writeFile(FileStatus file) {
            text.append('[');
            quote(file.getPath().toString());
            text.append(',').append(file.isDirectory()).append(',').append(file.getLen());
            text.append(',').append(file.getModificationTime()).append(']');
        }

        private void writeFolders(Iterator partitions, StructType schema) {
            field("folders");
            text.append('{');
            for (int n = 0; partitions.hasNext(); n++) {
                PartitionPath partition = (PartitionPath) partitions.next();
                comma(n);
                writeFolder(partition.path().toString(), partition.values(), schema);
            }
            text.append('}');
        }

        /** A value as Spark holds it; bytes, and strings that are not valid, in base 64. */
        private void writeInternal(Object value) {
            if (value instanceof Float || value instanceof Double || value instanceof Decimal) {
                quote(value.toString());
            } else if (value == null || value instanceof Boolean || value instanceof Number) {
                writeNumber(value);
            } else if (value instanceof UTF8String) {
                if (UTF8String.fromString(value.toString()).equals(value)) {
                    quote(value.toString());
                } else {
                    writeBytes(((UTF8String) value).getBytes());
                }
            } else if (value instanceof byte[]) {
                writeBytes((byte[]) value);
            } else if (value instanceof CalendarInterval) {
                CalendarInterval interval = (CalendarInterval) value;
                text.append("{\"months\":").append(interval.months).append(",\"days\":").append(interval.days);
                text.append(",\"microseconds\":").append(interval.microseconds).append('}');
            } else {
                text.append("{}");
            }
        }

        private void writeBytes(byte[] value) {
            text.append("{\"bytes\":\"").append(Base64.getEncoder().encodeToString(value)).append("\"}");
        }

        private void writeNumber(Object value) {
            if (value instanceof Float || value instanceof Double || value instanceof Decimal) {
                quote(value.toString());
            } else {
                text.append(value);
            }
        }

        private void writeText(Object value) {
            if (value == null) {
                text.append("null");
            } else {
                quote(value.toString());
            }
        }

        private void field(String name) {
            text.append(',');
            quote(name);
            text.append(':');
        }

        private void comma(int number) {
            if (number > 0) {
                text.append(',');
            }
        }

        private void quote(String value) {
            text.append('"');
            for (int i = 0; i < value.length(); i++) {
                char c = value.charAt(i);
                if (c == '"' || c == '\\') {
                    text.append('\\').append(c);
                } else if (c < ' ' || Character.isSurrogate(c)) {
                    text.append("\\u").append(Integer.toHexString(0x10000 | c).substring(1));
                } else {
                    text.append(c);
                }
            }
            text.append('"');
        }
    }
}

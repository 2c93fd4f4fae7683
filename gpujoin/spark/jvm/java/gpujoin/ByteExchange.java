package gpujoin;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.WeakHashMap;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.ContextCleaner;
import org.apache.spark.PartitionEvaluatorFactory;
import org.apache.spark.SparkContext;
import org.apache.spark.api.java.JavaPairRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.api.python.PairwiseRDD;
import org.apache.spark.api.python.PythonPartitioner;
import org.apache.spark.api.python.PythonRDD;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.codegen.CodeAndComment;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.WholeStageCodegenEvaluatorFactory;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.execution.metric.SQLMetrics$;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.util.CollectionAccumulator;
import scala.Option;
import scala.reflect.ClassTag$;
import scala.util.Right;

/**
 * Stages of Python tasks that send one another bytes, through Spark's RDD shuffle.
 *
 * <p>The RDDs are Spark's own, as those of PySpark's partitionBy, so executors need no class of this package:
 *
 * <pre>
 *   PythonRDD(producer)   two packets for each blob: the number of a partition, and the blob
 *   PairwiseRDD           pairs of number and blob
 *   ShuffledRDD           by PythonPartitioner, which takes the numbers as they are
 *   union                 partition n of all producers, one after the other, in the order in which they are read
 *   PythonRDD(consumer)   Arrow messages
 *   rows                  of the messages, one batch at a time, by code that each executor compiles (ArrowRows)
 * </pre>
 *
 * <p>Nothing runs until the plan does. What is lost is computed again by the rules of RDDs.
 */
public final class ByteExchange {
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private static final String CALL_SITE = "callSite.short";

    /** What the class has that Spark compiles, beside ArrowRows: the method by which Spark makes an object of it. */
    private static final String GENERATE =
        "public Object generate(Object[] references) {\n    return new ArrowRows(references);\n}\n";

    private final CodeAndComment rowCode;
    /** The stages of each RDD of rows that was given. */
    private final Map known = Collections.synchronizedMap(new WeakHashMap());

    /** @param arrowRows the source of ArrowRows */
    public ByteExchange(String arrowRows) {
        String members = arrowRows.substring(arrowRows.indexOf(';') + 1) + GENERATE;
        this.rowCode = new CodeAndComment(members, scala.collection.immutable.Map$.MODULE$.empty());
    }

    /**
     * A plan of the rows that the last stage gives. Its first column is named after the stage, so that the plan shows it.
     *
     * @param described JSON of the stages
     * @param commands the pickled functions of all stages
     * @param broadcasts for each stage whose function is broadcast a list of its broadcasts, or null
     */
    public LogicalPlan rows(
        SparkSession session, String described, byte[] commands, CollectionAccumulator accumulator, List broadcasts
    ) throws Exception {
        Map island = (Map) MAPPER.readValue(described, Map.class);
        Map last = (Map) island.get("stage");
        Map python = (Map) island.get("python");
        SparkContext context = session.sparkContext();
        Stages stages = new Stages(context, python, commands, accumulator, broadcasts);
        String before = context.getLocalProperty(CALL_SITE);
        try {
            StructType schema = (StructType) DataType.fromJson((String) last.get("schema"));
            IslandFacts.describe((String) last.get("name"), (String) last.get("operations"), context);
            RDD messages = stages.stage(last, stages.sources(last));
            context.setLocalProperty(CALL_SITE, (String) last.get("shown"));
            RDD computed = rowsOf(messages, schema, session);
            known.put(computed, stages);
            Dataset frame = session.internalCreateDataFrame(computed, schema, false);
            LogicalRDD rows = (LogicalRDD) frame.queryExecution().analyzed();
            int tasks = ((Integer) last.get("tasks")).intValue();
            return named(rows, (String) last.get("name"), tasks, session);
        } finally {
            context.setLocalProperty(CALL_SITE, before);
        }
    }

    /**
     * Removes what the stages of a plan have exchanged from the disks of executors. Where the plan runs again, Spark
     * computes that again.
     */
    public void removeExchanged(SparkContext context, LogicalPlan plan) {
        Stages stages = plan instanceof LogicalRDD ? (Stages) known.get(((LogicalRDD) plan).rdd()) : null;
        for (int i = 0; stages != null && context.cleaner().isDefined() && i < stages.exchanged.size(); i++) {
            int shuffle = stages.mapStages.shuffleOf((MapStages.Source) stages.exchanged.get(i));
            if (shuffle >= 0) {
                ((ContextCleaner) context.cleaner().get()).doCleanupShuffle(shuffle, true);
            }
        }
        for (int i = 0; i < plan.children().size(); i++) {
            removeExchanged(context, (LogicalPlan) plan.children().apply(i));
        }
        for (int i = 0; i < plan.subqueries().size(); i++) {
            removeExchanged(context, (LogicalPlan) plan.subqueries().apply(i));
        }
    }

    /**
     * The rows of Arrow messages.
     *
     * <p>Spark's operator for generated code is the only one that takes a source to executors and compiles it there.
     */
    private RDD rowsOf(RDD messages, StructType schema, SparkSession session) throws Exception {
        SparkContext context = session.sparkContext();
        String zone = session.sessionState().conf().sessionLocalTimeZone();
        Object[] references = new Object[] {arrowSchema(schema, zone).toJson()};
        SQLMetric time = SQLMetrics$.MODULE$.createTimingMetric(context, "duration", -1L);
        PartitionEvaluatorFactory code = new WholeStageCodegenEvaluatorFactory(new Right(rowCode), time, references);
        RDD rows = messages.mapPartitionsWithEvaluator(code, ClassTag$.MODULE$.apply(InternalRow.class));
        return rows.setName("arrow");
    }

    /** The Arrow form of a schema; releases of Spark have got further options, with defaults, at the end. */
    private static Schema arrowSchema(StructType schema, String zone) throws Exception {
        Method longest = null;
        Method[] methods = ArrowUtils.class.getMethods();
        for (int i = 0; i < methods.length; i++) {
            if (methods[i].getName().equals("toArrowSchema")
                && (longest == null || methods[i].getParameterCount() > longest.getParameterCount())) {
                longest = methods[i];
            }
        }
        Object[] arguments = new Object[longest.getParameterCount()];
        Arrays.fill(arguments, Boolean.FALSE);
        arguments[0] = schema;
        arguments[1] = zone;
        return (Schema) longest.invoke(null, arguments);
    }

    /** The same rows with another name of the first column. Spark needs no shuffle above those of one task. */
    private static LogicalPlan named(
        LogicalRDD rows, String name, int tasks, SparkSession session
    ) throws Exception {
        ArrayList columns = new ArrayList();
        for (int i = 0; i < rows.output().size(); i++) {
            Attribute column = (Attribute) rows.output().apply(i);
            columns.add(i == 0 ? column.withName(name) : column);
        }
        return SizedRows.rebuilt(rows, PythonUtils.toSeq(columns), tasks == 1, session, Option.empty());
    }

    /** The RDDs of an island's stages. */
    private static final class Stages {
        private final SparkContext context;
        private final Map python;
        private final byte[] commands;
        private final CollectionAccumulator accumulator;
        private final List broadcasts;
        private final MapStages mapStages;
        /** The shuffled rows of stages that several others read, by number. */
        private final Map shared = new HashMap();
        final List exchanged = new ArrayList();

        Stages(SparkContext context, Map python, byte[] commands, CollectionAccumulator accumulator, List broadcasts) {
            this.context = context;
            this.python = python;
            this.commands = commands;
            this.accumulator = accumulator;
            this.broadcasts = broadcasts;
            this.mapStages = new MapStages(context);
        }

        /** The rows of a stage, in one of two ways where one of its inputs may prove small. */
        RDD stage(Map stage, List sources) {
            int tasks = ((Integer) stage.get("tasks")).intValue();
            Map coalescing = (Map) stage.get("coalescing");
            RDD planned = python(stage, sources.isEmpty() ? nothing(tasks) : values(
                coalescing == null ? MapStages.united(sources) : coalesced(sources, coalescing, tasks)));
            Map late = (Map) stage.get("late");
            if (late == null) {
                return planned;
            }
            Map other = (Map) late.get("stage");
            int others = ((Integer) other.get("tasks")).intValue();
            RDD taken = values(mapStages.sent(sources(other), (List) late.get("whole"), others));
            return mapStages.chosen(
                planned, python(other, taken), small(late, sources), ((Number) late.get("limit")).longValue());
        }

        private static MapStages.Source small(Map late, List sources) {
            return (MapStages.Source) sources.get(((Integer) late.get("small")).intValue());
        }

        private PythonRDD python(Map stage, RDD taken) {
            context.setLocalProperty(CALL_SITE, (String) stage.get("shown"));
            PythonRDD made = new PythonRDD(
                taken, PlanRewriter.pythonFunction(stage, python, commands, accumulator, broadcasts), false, false);
            made.setName((String) stage.get("name"));
            return made;
        }

        /** A partition for each task, with an empty packet: a task knows its number. */
        private RDD nothing(int tasks) {
            List packets = Collections.nCopies(tasks, new byte[0]);
            return JavaSparkContext.fromSparkContext(context).parallelize(packets, tasks).rdd();
        }

        /** What a stage reads, in order. */
        List sources(Map stage) {
            ArrayList sources = new ArrayList();
            int tasks = ((Integer) stage.get("tasks")).intValue();
            List inputs = (List) stage.get("inputs");
            for (int i = 0; i < inputs.size(); i++) {
                sources.add(source((Map) inputs.get(i), tasks));
            }
            return sources;
        }

        /** The rows of a stage by partition; a stage that several others read is shuffled once. */
        private MapStages.Source source(Map stage, int tasks) {
            Object number = stage.get("shared");
            if (number != null && shared.containsKey(number)) {
                return (MapStages.Source) shared.get(number);
            }
            List below = sources(stage);
            int divisions = ((Integer) stage.get("divisions")).intValue();
            PythonPartitioner partitioner = new PythonPartitioner(tasks * divisions, 0L);
            JavaPairRDD rows = new PairwiseRDD(stage(stage, below)).asJavaPairRDD().partitionBy(partitioner);
            Map late = (Map) stage.get("late");
            List first = late == null ? below : Collections.singletonList(small(late, below));
            boolean waits = late != null || stage.get("coalescing") != null;
            MapStages.Source source = new MapStages.Source(rows.rdd(), divisions, first, waits);
            exchanged.add(source);
            if (number != null) {
                shared.put(number, source);
            }
            return source;
        }

        private RDD coalesced(List sources, Map coalescing, int partitions) {
            Map splitting = (Map) coalescing.get("splitting");
            return mapStages.coalesced(
                sources, (List) coalescing.get("copies"), partitions, ((Integer) coalescing.get("tasks")).intValue(),
                ((Number) coalescing.get("least")).longValue(), ((Number) coalescing.get("most")).longValue(),
                splitting == null ? null : new PartitionShares(splitting));
        }

        private static RDD values(RDD pairs) {
            return PythonRDD.valueOfPair(JavaPairRDD.fromRDD(pairs, ClassTag$.MODULE$.AnyRef(), ClassTag$.MODULE$.AnyRef())).rdd();
        }
    }
}

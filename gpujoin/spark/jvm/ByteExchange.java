package gpujoin;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.SparkContext;
import org.apache.spark.api.java.JavaPairRDD;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.api.python.PairwiseRDD;
import org.apache.spark.api.python.PythonPartitioner;
import org.apache.spark.api.python.PythonRDD;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.api.r.SQLUtils;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.util.CollectionAccumulator;
import scala.Option;
import scala.reflect.ClassTag$;

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
 *   PythonRDD(consumer)   Arrow messages, of which Spark's ArrowConverters makes rows
 * </pre>
 *
 * <p>Nothing runs until the plan does. What is lost is computed again by the rules of RDDs.
 */
public final class ByteExchange {
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private static final String CALL_SITE = "callSite.short";

    public ByteExchange() {}

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
            JavaRDD messages = stages.stage(last, stages.sources(last)).toJavaRDD();
            context.setLocalProperty(CALL_SITE, (String) last.get("shown"));
            Object frame = SQLUtils.toDataFrame(messages, schema, session);
            LogicalRDD rows = (LogicalRDD) ((Dataset) frame).queryExecution().analyzed();
            int tasks = ((Integer) last.get("tasks")).intValue();
            return named(rows, (String) last.get("name"), tasks, session);
        } finally {
            context.setLocalProperty(CALL_SITE, before);
        }
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

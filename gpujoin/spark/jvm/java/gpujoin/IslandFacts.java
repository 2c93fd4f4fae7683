package gpujoin;

import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.SparkContext;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.execution.metric.SQLMetrics$;
import scala.Tuple2;

/**
 * What Spark's plans and its UI tell of the stages of islands: their operations, and metrics of Spark's own kind.
 *
 * <p>It is known by the stage's name, which is within that of its function, and so in every copy of its plan. All copies
 * have the same metrics, whose values are by execution, as Spark keeps those of the driver.
 */
public final class IslandFacts {
    private static final int MOST = 2000;
    private static final Pattern NAME = Pattern.compile("island_\\w*?(gpujoin_[0-9a-f]{12}(_\\d+)*)");
    private static final Map KNOWN = Collections.synchronizedMap(new LinkedHashMap());

    /** The metrics: key, text in the UI, and kind of each; the order is that of post(). */
    private static final String[][] METRICS = {
        {"islandRows", "rows of the island", "sum"},
        {"islandBytes", "bytes of the island's rows", "size"},
        {"islandTime", "time of the island's tasks", "timing"},
        {"islandSpilled", "bytes that the island spilled", "size"},
        {"islandFallbacks", "pieces finished on the CPU for memory", "sum"},
        {"islandCpuTasks", "tasks on the CPU", "sum"},
        {"islandGpuTasks", "tasks on the GPU", "sum"},
    };

    private final String[] operations;
    private final SQLMetric[] metrics;

    private IslandFacts(String[] operations, SparkContext context) {
        this.operations = operations;
        this.metrics = new SQLMetric[METRICS.length];
        for (int i = 0; i < metrics.length; i++) {
            String kind = METRICS[i][2];
            metrics[i] = kind.equals("size") ? SQLMetrics$.MODULE$.createSizeMetric(context, METRICS[i][1], 0L)
                : kind.equals("timing") ? SQLMetrics$.MODULE$.createTimingMetric(context, METRICS[i][1], 0L)
                : SQLMetrics$.MODULE$.createMetric(context, METRICS[i][1]);
        }
    }

    /** Notes the operations of a stage, one in a line, indented by two spaces for each level. */
    public static void describe(String function, String operations, SparkContext context) {
        String name = nameIn(function);
        if (name == null) {
            return;
        }
        synchronized (KNOWN) {
            KNOWN.put(name, new IslandFacts(operations.split("\n"), context));
            if (KNOWN.size() > MOST) {
                KNOWN.remove(KNOWN.keySet().iterator().next());
            }
        }
    }

    /** Gives what is known of the stage of a function; null where it is none of gpujoin's, or was forgotten. */
    public static IslandFacts of(String function) {
        String name = nameIn(function);
        return name == null ? null : (IslandFacts) KNOWN.get(name);
    }

    private static String nameIn(String function) {
        Matcher matcher = NAME.matcher(function);
        return matcher.lookingAt() ? matcher.group(1) : null;
    }

    /**
     * Posts what a task has measured to the execution that it was of.
     *
     * <p>A stage that no plan shows, as those whose blobs are exchanged as bytes, is a part of its island: its rows go
     * no further than to the island's other stages.
     *
     * @param values in the order of METRICS, separated by commas
     */
    static void post(SparkContext context, String stage, String execution, String values) {
        IslandFacts facts = (IslandFacts) KNOWN.get(stage);
        boolean within = facts == null;
        if (within) {
            facts = (IslandFacts) KNOWN.get(stage.split("_")[0] + "_" + stage.split("_")[1]);
        }
        if (facts == null) {
            return;
        }
        String[] numbers = values.split(",");
        ArrayList updates = new ArrayList();
        for (int i = within ? 2 : 0; i < METRICS.length; i++) {
            long value = Long.parseLong(numbers[i]);
            if (value != 0L) {
                updates.add(new Tuple2(Long.valueOf(facts.metrics[i].id()), Long.valueOf(value)));
            }
        }
        SQLMetrics$.MODULE$.postDriverMetricsUpdatedByValue(
            context, execution, PythonUtils.toSeq(updates));
    }

    /** Adds the metrics to those that Spark's operator has. */
    public scala.collection.immutable.Map with(scala.collection.immutable.Map others) {
        scala.collection.immutable.Map all = others;
        for (int i = 0; i < METRICS.length; i++) {
            all = (scala.collection.immutable.Map) all.updated(METRICS[i][0], metrics[i]);
        }
        return all;
    }

    /** Gives the topmost operation, with those that feed it below. */
    public GpuJoinOperation tree() {
        return operation(new int[] {0});
    }

    /** Gives the operations as lines, each after a text. */
    public String lines(String before) {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < operations.length; i++) {
            text.append(before).append(operations[i]).append("\n");
        }
        return text.toString();
    }

    private GpuJoinOperation operation(int[] next) {
        String line = operations[next[0]++];
        int depth = depth(line);
        ArrayList inputs = new ArrayList();
        while (next[0] < operations.length && depth(operations[next[0]]) > depth) {
            inputs.add(operation(next));
        }
        return new GpuJoinOperation(line.trim(), PythonUtils.toSeq(inputs));
    }

    private static int depth(String line) {
        int depth = 0;
        while (depth < line.length() && line.charAt(depth) == ' ') {
            depth++;
        }
        return depth;
    }
}

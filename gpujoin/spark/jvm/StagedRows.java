package gpujoin;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.sql.execution.columnar.CachedRDDBuilder;
import org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionEnd;

/** Removes the rows that were computed for a write from the executors' disks once its execution has ended. */
public final class StagedRows extends SparkListener {
    private final Map byExecution = new ConcurrentHashMap();

    public StagedRows() {}

    /** Has rows removed after an execution; those of a write that is none are left to Spark's cleaner. */
    public void removeAfter(String execution, CachedRDDBuilder rows) {
        if (execution != null) {
            byExecution.put(execution, rows);
        }
    }

    public void onOtherEvent(SparkListenerEvent event) {
        if (event instanceof SparkListenerSQLExecutionEnd) {
            long execution = ((SparkListenerSQLExecutionEnd) event).executionId();
            Object rows = byExecution.remove(Long.toString(execution));
            if (rows != null) {
                ((CachedRDDBuilder) rows).clearCache(false);
            }
        }
    }
}

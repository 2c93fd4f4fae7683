package gpujoin;

import java.lang.ref.WeakReference;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.SparkContext;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.scheduler.SparkListenerJobEnd;
import org.apache.spark.scheduler.SparkListenerJobStart;
import org.apache.spark.sql.execution.columnar.CachedRDDBuilder;
import org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionEnd;

/**
 * Removes the rows that were computed for a write once its execution has ended, and cancels the jobs of interrupted calls.
 *
 * <p>After Ctrl-C the program waits no longer for what it has called, and the JVM's thread that answers it goes on to the
 * end of the call: py4j has closed its connection, so it ends then. Jobs are known by that thread, whose id is one of
 * their properties. Until the thread has ended, all that are active and all that begin are cancelled. Those of streams
 * are not: their threads were begun by such a call, and have inherited its properties.
 */
public final class ApplicationListener extends SparkListener {
    private static final String THREAD = "gpujoin.thread";
    private static final String STREAM = "sql.streaming.queryId";

    private final SparkContext context;
    /** What an execution is to have removed, by its id. */
    private final Map byExecution = new ConcurrentHashMap();
    /** Threads that answer the program, by their ids as texts. */
    private final Map threads = new ConcurrentHashMap();
    /** Those for whose calls nobody waits. */
    private final Map interrupted = new ConcurrentHashMap();
    /** The ids of the threads of active jobs. */
    private final Map active = new ConcurrentHashMap();

    public ApplicationListener(SparkContext context) {
        this.context = context;
        context.addSparkListener(this);
    }

    /** Has rows removed after an execution; those of a write that is none are left to Spark's cleaner. */
    public void removeAfter(String execution, CachedRDDBuilder rows) {
        if (execution != null) {
            byExecution.put(execution, rows);
        }
    }

    /** Names the jobs of this thread after it, and gives its id. */
    public long nameJobs() {
        Thread thread = Thread.currentThread();
        String name = Long.toString(thread.getId());
        threads.put(name, new WeakReference(thread));
        context.setLocalProperty(THREAD, name);
        return thread.getId();
    }

    /** Cancels the jobs of a thread, those that it has yet to begin included. */
    public void cancelJobs(long thread) {
        interrupted.put(Long.toString(thread), Boolean.TRUE);
        cancelActiveJobs(thread);
    }

    /** Cancels the active jobs of a thread. */
    public void cancelActiveJobs(long thread) {
        String name = Long.toString(thread);
        Object[] jobs = active.entrySet().toArray();
        for (int i = 0; i < jobs.length; i++) {
            Map.Entry job = (Map.Entry) jobs[i];
            if (name.equals(job.getValue())) {
                cancel(((Integer) job.getKey()).intValue());
            }
        }
    }

    public void onJobStart(SparkListenerJobStart event) {
        Properties properties = event.properties();
        Object name = properties == null ? null : properties.getProperty(THREAD);
        if (name == null || properties.getProperty(STREAM) != null) {
            return;
        }
        active.put(Integer.valueOf(event.jobId()), name);
        if (interrupted.containsKey(name) && isAlive(name)) {
            cancel(event.jobId());
        }
    }

    public void onJobEnd(SparkListenerJobEnd event) {
        active.remove(Integer.valueOf(event.jobId()));
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

    /** Whether a thread still runs; one that has ended is forgotten, and what inherited its id may have jobs. */
    private boolean isAlive(Object name) {
        WeakReference reference = (WeakReference) threads.get(name);
        Thread thread = reference == null ? null : (Thread) reference.get();
        if (thread != null && thread.isAlive()) {
            return true;
        }
        interrupted.remove(name);
        threads.remove(name);
        return false;
    }

    private void cancel(int job) {
        context.cancelJob(job, "the program was interrupted");
    }
}

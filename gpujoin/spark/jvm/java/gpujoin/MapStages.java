package gpujoin;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeoutException;
import org.apache.spark.FutureAction;
import org.apache.spark.MapOutputStatistics;
import org.apache.spark.OneToOneDependency;
import org.apache.spark.Partition;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.SimpleFutureAction;
import org.apache.spark.SparkContext;
import org.apache.spark.TaskContext;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.rdd.CoalescedRDD;
import org.apache.spark.rdd.PartitionCoalescer;
import org.apache.spark.rdd.PartitionGroup;
import org.apache.spark.rdd.RDD;
import org.apache.spark.rdd.UnionRDD;
import scala.Option;
import scala.Some;
import scala.collection.immutable.Seq;
import scala.concurrent.Await;
import scala.concurrent.duration.Duration;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;
import scala.util.Failure;
import scala.util.Try;

/**
 * Runs the map stages of an island's shuffles before the stages that read them, as Spark's adaptive execution does, so
 * that the tasks of these are made by sizes that are known.
 *
 * <p>That happens when Spark asks an RDD for its partitions, which it does in the thread that submits a job: what runs
 * has the properties of that thread, such as job group and description. Executors see Spark's own classes only.
 */
public final class MapStages {
    private static final long CHECK_MILLISECONDS = 100;

    private final SparkContext context;
    /** What was submitted, by the number of the shuffle. */
    private final Map submitted = new HashMap();
    /** The sources whose map stages were submitted here. */
    private final Set started = Collections.synchronizedSet(new HashSet());

    public MapStages(SparkContext context) {
        this.context = context;
    }

    /**
     * The number of a source's shuffle, or -1 if nothing was written for it: to ask for that of a source whose tasks are
     * not known yet would run the stages before it.
     */
    public int shuffleOf(Source source) {
        return source.waits && !started.contains(source) ? -1 : source.dependency().shuffleId();
    }

    /** Shuffled rows, which a stage reads. */
    public static final class Source {
        final RDD rows;
        /** Partitions of the rows that belong to one partition of the stage that reads them, side by side. */
        final int divisions;
        /** What the stage that gives the rows reads, or that of it by whose size it is decided what else is read. */
        final List below;
        /** Whether the tasks of that stage, or of one before it, are not known before other map stages have run. */
        final boolean waits;

        public Source(RDD rows, int divisions, List below, boolean decided) {
            this.rows = rows;
            this.divisions = divisions;
            this.below = below;
            boolean any = decided;
            for (int i = 0; i < below.size(); i++) {
                any |= ((Source) below.get(i)).waits;
            }
            this.waits = any;
        }

        ShuffleDependency dependency() {
            return (ShuffleDependency) rows.dependencies().head();
        }
    }

    /** Rows of some sources without divisions: partition n of all of them, one after the other. */
    public static RDD united(List sources) {
        RDD all = ((Source) sources.get(0)).rows;
        for (int i = 1; i < sources.size(); i++) {
            // RDDs with one partitioner are united partition by partition, in order.
            all = all.union(((Source) sources.get(i)).rows);
        }
        return all;
    }

    /**
     * Rows of some sources, neighbouring partitions of which are coalesced where they are small, and heavy ones split.
     *
     * @param sources in the order in which a task reads them
     * @param copies for each source whether each of its partitions has the same rows
     * @param tasks how many tasks there should be at least, where these would have {@code least} bytes each
     * @param least bytes that are worth a task
     * @param most bytes of coalesced partitions
     * @param shares how heavy partitions are split, or null; what a task that computes a share reads first says so
     */
    public RDD coalesced(
        List sources, List copies, int partitions, int tasks, long least, long most, PartitionShares shares
    ) {
        Coalescer coalescer = new Coalescer(this, sources, copies, partitions, tasks, least, most, shares);
        ArrayList rows = rows(sources);
        if (shares != null) {
            rows.add(shares.packets(context));
        }
        return grouped(rows, partitions, coalescer);
    }

    /** Rows of some sources: partition n of each, or all partitions of those that are {@code whole}. */
    public RDD sent(List sources, List whole, int tasks) {
        return grouped(rows(sources), tasks, new Sending(sources, whole));
    }

    private static ArrayList rows(List sources) {
        ArrayList rows = new ArrayList();
        for (int i = 0; i < sources.size(); i++) {
            rows.add(((Source) sources.get(i)).rows);
        }
        return rows;
    }

    /** The partitions of some RDDs, those of the first before those of the second, in groups of one task each. */
    private RDD grouped(List rows, int tasks, Grouping grouping) {
        ClassTag any = ClassTag$.MODULE$.AnyRef();
        return new CoalescedRDD(new UnionRDD(context, PythonUtils.toSeq(rows), any), tasks, new Some(grouping), any);
    }

    /** Where the partitions of each source begin among those of a union of all, and where the last one's end. */
    private static int[] begins(List sources) {
        int[] begins = new int[sources.size() + 1];
        for (int i = 0; i < sources.size(); i++) {
            begins[i + 1] = begins[i] + ((Source) sources.get(i)).rows.getNumPartitions();
        }
        return begins;
    }

    /** The rows of a stage: as planned, or {@code instead} where a source proves to have at most {@code limit} bytes. */
    public RDD chosen(RDD planned, RDD instead, Source small, long limit) {
        return new Chosen(context, this, planned, instead, small, limit);
    }

    /** The bytes of each partition of some sources; waits until their map stages have run. */
    private long[][] bytes(List sources) {
        HashSet seen = new HashSet();
        start(sources, seen);
        ArrayList futures = new ArrayList();
        for (int i = 0; i < sources.size(); i++) {
            futures.add(submit((Source) sources.get(i)));
        }
        waitFor(futures);
        long[][] bytes = new long[futures.size()][];
        for (int i = 0; i < bytes.length; i++) {
            bytes[i] = ((MapOutputStatistics) result((SimpleFutureAction) futures.get(i))).bytesByPartitionId();
        }
        return bytes;
    }

    /** Submits the map stages that need not wait for others; all of them, so that they run side by side. */
    private void start(List sources, Set seen) {
        for (int i = 0; i < sources.size(); i++) {
            Source source = (Source) sources.get(i);
            if (!seen.add(source)) {
                continue;
            }
            if (source.waits) {
                start(source.below, seen);
            } else {
                submit(source);
            }
        }
    }

    /** Submits a map stage, unless that was done. Where the tasks of stages before it are not known, it waits for them. */
    private SimpleFutureAction submit(Source source) {
        ShuffleDependency dependency = source.dependency();
        started.add(source);
        Integer number = Integer.valueOf(dependency.shuffleId());
        synchronized (submitted) {
            SimpleFutureAction known = (SimpleFutureAction) submitted.get(number);
            if (known != null && !failed(known)) {
                return known;
            }
        }
        SimpleFutureAction future = context.submitMapStage(dependency);
        synchronized (submitted) {
            submitted.put(number, future);
        }
        return future;
    }

    /** Waits for all; if one fails, or this thread is interrupted, the others are cancelled, as those of one job are. */
    private void waitFor(List futures) {
        boolean done = false;
        try {
            ArrayList left = new ArrayList(futures);
            while (!left.isEmpty()) {
                try {
                    Await.ready((SimpleFutureAction) left.get(0), Duration.apply(CHECK_MILLISECONDS, "ms"));
                } catch (TimeoutException late) {
                    // One of the others may have failed.
                } catch (InterruptedException stopped) {
                    new Failure(stopped).get();
                }
                for (Iterator each = left.iterator(); each.hasNext();) {
                    SimpleFutureAction future = (SimpleFutureAction) each.next();
                    if (future.isCompleted()) {
                        result(future);
                        each.remove();
                    }
                }
            }
            done = true;
        } finally {
            if (!done) {
                cancel();
            }
        }
    }

    private void cancel() {
        synchronized (submitted) {
            for (Iterator each = submitted.values().iterator(); each.hasNext();) {
                FutureAction future = (FutureAction) each.next();
                if (!future.isCompleted()) {
                    future.cancel();
                    each.remove();
                }
            }
        }
    }

    private static boolean failed(SimpleFutureAction future) {
        Option value = future.value();
        return value.isDefined() && ((Try) value.get()).isFailure();
    }

    /** What a map stage that has ended gave; an error is thrown as it is. */
    private static Object result(SimpleFutureAction future) {
        return ((Try) future.value().get()).get();
    }

    /** Groups partitions in the driver. */
    private abstract static class Grouping implements PartitionCoalescer, Serializable {
        /** Executors, which ask nothing of it, get none: they could not load the class. */
        public Object writeReplace() {
            return null;
        }
    }

    /** Which partitions of a union of sources each of some tasks reads. */
    private static final class Sending extends Grouping {
        private final transient List sources;
        private final transient List whole;

        Sending(List sources, List whole) {
            this.sources = sources;
            this.whole = whole;
        }

        public PartitionGroup[] coalesce(int tasks, RDD union) {
            List all = Arrays.asList(union.partitions());
            int[] begins = begins(sources);
            PartitionGroup[] groups = new PartitionGroup[tasks];
            for (int task = 0; task < tasks; task++) {
                groups[task] = new PartitionGroup(Option.empty());
                for (int i = 0; i < sources.size(); i++) {
                    boolean every = ((Boolean) whole.get(i)).booleanValue();
                    int divisions = ((Source) sources.get(i)).divisions;
                    int first = every ? begins[i] : begins[i] + task * divisions;
                    int last = every ? begins[i + 1] : first + divisions;
                    groups[task].partitions().appendAll(PythonUtils.toSeq(all.subList(first, last)));
                }
            }
            return groups;
        }
    }

    /** One of two RDDs with the same rows, chosen when its partitions are asked for. Executors get that one itself. */
    public static final class Chosen extends RDD {
        private final transient MapStages stages;
        private final transient RDD planned;
        private final transient RDD instead;
        private final transient Source small;
        private final transient long limit;
        private transient RDD chosen;

        Chosen(SparkContext context, MapStages stages, RDD planned, RDD instead, Source small, long limit) {
            super(context, PythonUtils.toSeq(new ArrayList()), ClassTag$.MODULE$.apply(byte[].class));
            this.stages = stages;
            this.planned = planned;
            this.instead = instead;
            this.small = small;
            this.limit = limit;
        }

        synchronized RDD chosen() {
            if (chosen == null) {
                long all = 0;
                long[] bytes = stages.bytes(Collections.singletonList(small))[0];
                for (int i = 0; i < bytes.length; i++) {
                    all += bytes[i];
                }
                chosen = all <= limit ? instead : planned;
            }
            return chosen;
        }

        public Partition[] getPartitions() {
            return chosen().partitions();
        }

        public Seq getDependencies() {
            return PythonUtils.toSeq(Arrays.asList(new Object[] {new OneToOneDependency(chosen())}));
        }

        public scala.collection.Iterator compute(Partition partition, TaskContext task) {
            return chosen().iterator(partition, task);
        }

        public Object writeReplace() {
            return chosen();
        }
    }

    /**
     * Coalesces neighbouring partitions until they are worth a task, and splits heavy ones. ::
     *
     * <pre>
     *   source 0   3 MB   1 MB   0 MB   9 MB
     *   source 1   1 MB   1 MB   1 MB   1 MB      at most 8 MB: {0, 1, 2}, {3}
     * </pre>
     *
     * <p>A task reads one source after the other, each with all its partitions, as if they were one partition.
     */
    private static final class Coalescer extends Grouping {
        private final transient MapStages stages;
        private final transient List sources;
        private final transient List copies;
        private final transient PartitionShares shares;
        private final int partitions;
        private final int tasks;
        private final long least;
        private final long most;

        Coalescer(
            MapStages stages, List sources, List copies, int partitions, int tasks, long least, long most,
            PartitionShares shares
        ) {
            this.stages = stages;
            this.sources = sources;
            this.copies = copies;
            this.partitions = partitions;
            this.tasks = tasks;
            this.least = least;
            this.most = most;
            this.shares = shares;
        }

        public PartitionGroup[] coalesce(int limit, RDD union) {
            long[][] bytes = stages.bytes(sources);
            int[] divisions = divisions();
            List[] split = shares == null ? new List[partitions] : shares.of(bytes, divisions, partitions);
            long[] sizes = new long[partitions];
            long all = 0;
            for (int p = 0; p < partitions; p++) {
                for (int i = 0; i < bytes.length; i++) {
                    sizes[p] += isCopied(i) ? 0 : PartitionShares.sum(bytes[i], p, divisions[i]);
                }
                all += split[p] == null ? sizes[p] : 0;
            }
            long target = Math.max(least, Math.min(most, (all + tasks - 1) / tasks));
            ArrayList groups = new ArrayList();
            int begin = 0;
            long taken = 0;
            for (int p = 0; p < partitions; p++) {
                if (p > begin && (split[p] != null || taken + sizes[p] > target)) {
                    groups.add(group(union.partitions(), begin, p, null));
                    begin = p;
                    taken = 0;
                }
                taken += sizes[p];
                for (int i = 0; split[p] != null && i < split[p].size(); i++) {
                    groups.add(group(union.partitions(), p, p + 1, (PartitionShares.Share) split[p].get(i)));
                    begin = p + 1;
                    taken = 0;
                }
            }
            if (begin < partitions) {
                groups.add(group(union.partitions(), begin, partitions, null));
            }
            return (PartitionGroup[]) groups.toArray(new PartitionGroup[groups.size()]);
        }

        /**
         * The partitions from {@code begin} to {@code end} of each source, of rows that all have a copy of the first.
         *
         * <p>Of a share the packet that tells of it comes before them, and of divided rows only some divisions.
         */
        private PartitionGroup group(Partition[] all, int begin, int end, PartitionShares.Share share) {
            int[] begins = begins(sources);
            ArrayList members = new ArrayList();
            if (share != null) {
                members.add(all[begins[sources.size()] + share.kind]);
            }
            for (int i = 0; i < sources.size(); i++) {
                int divisions = ((Source) sources.get(i)).divisions;
                int last = isCopied(i) ? begin + 1 : end;
                for (int n = begin * divisions; n < last * divisions; n++) {
                    if (share == null || share.reads(i, n - begin * divisions)) {
                        members.add(all[begins[i] + n]);
                    }
                }
            }
            PartitionGroup group = new PartitionGroup(Option.empty());
            group.partitions().appendAll(PythonUtils.toSeq(members));
            return group;
        }

        private int[] divisions() {
            int[] divisions = new int[sources.size()];
            for (int i = 0; i < divisions.length; i++) {
                divisions[i] = ((Source) sources.get(i)).divisions;
            }
            return divisions;
        }

        private boolean isCopied(int source) {
            return ((Boolean) copies.get(source)).booleanValue();
        }
    }
}

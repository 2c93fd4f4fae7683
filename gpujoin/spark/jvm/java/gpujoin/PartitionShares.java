package gpujoin;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.apache.spark.SparkContext;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.rdd.RDD;
import scala.Tuple2;

/**
 * Divides the heavy partitions of a join into shares, a task each, by the rules and settings of Spark's own adaptive
 * execution. What each side's rows may be is decided by Python ({@code plan/partition_sizes}).
 *
 * <pre>
 *   bytes of divisions   left  9 0 9 8   right  1            threshold 20, share 9
 *   shares               left  0         right  all
 *                        left  2         right  all
 *                        left  3         right  all
 *                        left  all       right  all: the right rows that have no match, of a full join
 * </pre>
 */
public final class PartitionShares {
    private static final int LEFT = 0;
    private static final int RIGHT = 1;
    /** Kinds of shares, in the order of Python's. */
    private static final int BOTH = 2;
    private static final int UNMATCHED = 3;

    private final int[] places;
    private final boolean[] divided;
    private final boolean unmatched;
    private final double factor;
    private final long threshold;
    private final long bytes;
    private final List packets;

    public PartitionShares(Map described) {
        places = new int[] {number(described.get("left")).intValue(), number(described.get("right")).intValue()};
        List sides = (List) described.get("divided");
        divided = new boolean[] {((Boolean) sides.get(LEFT)).booleanValue(), ((Boolean) sides.get(RIGHT)).booleanValue()};
        unmatched = ((Boolean) described.get("unmatched")).booleanValue();
        factor = number(described.get("factor")).doubleValue();
        threshold = number(described.get("threshold")).longValue();
        bytes = Math.max(1L, number(described.get("bytes")).longValue());
        packets = (List) described.get("packets");
    }

    private static Number number(Object value) {
        return (Number) value;
    }

    /** What a task reads of a heavy partition. */
    public static final class Share {
        /** The number of the packet that tells of it. */
        public final int kind;
        private final int[] places;
        /** For each side the divisions that are read; null: all. */
        private final boolean[][] divisions;

        Share(int kind, int[] places, boolean[] left, boolean[] right) {
            this.kind = kind;
            this.places = places;
            this.divisions = new boolean[][] {left, right};
        }

        public boolean reads(int source, int division) {
            for (int side = LEFT; side <= RIGHT; side++) {
                if (places[side] == source && divisions[side] != null) {
                    return divisions[side][division];
                }
            }
            return true;
        }
    }

    /** Rows with the packet of one kind of share in each partition. */
    public RDD packets(SparkContext context) {
        ArrayList pairs = new ArrayList();
        for (int i = 0; i < packets.size(); i++) {
            byte[] packet = ((String) packets.get(i)).getBytes(StandardCharsets.US_ASCII);
            pairs.add(new Tuple2(Long.valueOf(i), packet));
        }
        return JavaSparkContext.fromSparkContext(context).parallelize(pairs, pairs.size()).rdd();
    }

    /**
     * The shares of each partition; null: it is not split.
     *
     * @param all the bytes of all divisions of each source
     * @param divisions how many divisions a partition has, of each source
     */
    public List[] of(long[][] all, int[] divisions, int partitions) {
        long[][] sizes = new long[2][partitions];
        double[] heavy = new double[2];
        double[] wanted = new double[2];
        for (int side = LEFT; side <= RIGHT; side++) {
            for (int p = 0; p < partitions; p++) {
                sizes[side][p] = sum(all[places[side]], p, divisions[places[side]]);
            }
            heavy[side] = Math.max(threshold, factor * median(sizes[side]));
            wanted[side] = Math.max(bytes, meanUpTo(heavy[side], sizes[side]));
        }
        List[] shares = new List[partitions];
        for (int p = 0; p < partitions; p++) {
            boolean[][][] parts = new boolean[2][][];
            for (int side = LEFT; side <= RIGHT; side++) {
                boolean isHeavy = divided[side] && sizes[side][p] > heavy[side];
                parts[side] = isHeavy ? parts(all[places[side]], p, divisions[places[side]], wanted[side]) : null;
            }
            if (unmatched && parts[LEFT] != null && parts[RIGHT] != null) {
                parts[sizes[LEFT][p] < sizes[RIGHT][p] ? LEFT : RIGHT] = null;
            }
            shares[p] = parts[LEFT] == null && parts[RIGHT] == null ? null : shares(parts[LEFT], parts[RIGHT]);
        }
        return shares;
    }

    /** The bytes of all divisions of a partition. */
    public static long sum(long[] bytes, int partition, int divisions) {
        long all = 0;
        for (int n = partition * divisions; n < (partition + 1) * divisions; n++) {
            all += bytes[n];
        }
        return all;
    }

    private List shares(boolean[][] left, boolean[][] right) {
        ArrayList shares = new ArrayList();
        int kind = right == null ? LEFT : left == null ? RIGHT : BOTH;
        for (int i = 0; i < (left == null ? 1 : left.length); i++) {
            for (int j = 0; j < (right == null ? 1 : right.length); j++) {
                shares.add(new Share(kind, places, left == null ? null : left[i], right == null ? null : right[j]));
            }
        }
        if (unmatched) {
            int repeated = kind == LEFT ? RIGHT : LEFT;
            shares.add(new Share(UNMATCHED + repeated, places, null, null));
        }
        return shares;
    }

    /** Divides the divisions of a partition into parts of about {@code wanted} bytes; null: they are one part. */
    private static boolean[][] parts(long[] all, int partition, int divisions, double wanted) {
        Long[] largest = new Long[divisions];
        int filled = 0;
        for (int n = 0; n < divisions; n++) {
            long size = all[partition * divisions + n];
            filled += size > 0 ? 1 : 0;
            // Ordered by size, and those of one size by number.
            largest[n] = Long.valueOf(size * divisions + n);
        }
        int count = (int) Math.min(filled, Math.ceil(sum(all, partition, divisions) / wanted));
        if (count < 2) {
            return null;
        }
        Arrays.sort(largest);
        boolean[][] parts = new boolean[count][divisions];
        long[] sizes = new long[count];
        for (int i = divisions - 1; i >= 0; i--) {
            int smallest = 0;
            for (int n = 1; n < count; n++) {
                smallest = sizes[n] < sizes[smallest] ? n : smallest;
            }
            parts[smallest][(int) (largest[i].longValue() % divisions)] = true;
            sizes[smallest] += largest[i].longValue() / divisions;
        }
        return parts;
    }

    private static double median(long[] sizes) {
        long[] sorted = (long[]) sizes.clone();
        Arrays.sort(sorted);
        int middle = sorted.length / 2;
        return sorted.length % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2.0;
    }

    /** The mean of the sizes that are not heavy. */
    private static double meanUpTo(double heavy, long[] sizes) {
        double all = 0;
        int count = 0;
        for (int i = 0; i < sizes.length; i++) {
            if (sizes[i] <= heavy) {
                all += sizes[i];
                count++;
            }
        }
        return count == 0 ? 0 : all / count;
    }
}

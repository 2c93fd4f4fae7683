package gpujoin;

import java.io.IOException;
import java.util.Collections;
import java.util.Iterator;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorLoader;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.BufferedRowIterator;
import org.apache.spark.sql.execution.arrow.ArrowConverters$;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.util.TaskCompletionListener;

/**
 * The rows of Arrow messages, of which one batch is in memory at a time.
 *
 * <p>Batches are outside of the heap, so no garbage collector sees how much they take. Spark's own converter
 * (ArrowConverters) closes those of a task when the task ends. Here one is closed before the next is read, and the last
 * one when there is no more: a task may read several partitions. A row is valid until the next one is asked for.
 *
 * <p>Executors cannot load a class of this package. They get this source and compile it, as they do with what Spark
 * generates for a query (ByteExchange.rowsOf): there it is a member of a class, and may name Spark's classes only.
 */
public final class ArrowRows extends BufferedRowIterator implements TaskCompletionListener {
    private final String schema;
    private scala.collection.Iterator messages;
    private BufferAllocator allocator;
    private VectorSchemaRoot root;
    private VectorLoader loader;
    private ColumnarBatch batch;
    private Iterator rows = Collections.emptyIterator();

    /** @param references the Arrow schema of the messages, as JSON */
    public ArrowRows(Object[] references) {
        this.schema = (String) references[0];
    }

    /** Takes the messages of a partition, which are arrays of bytes, from the only input. */
    public void init(int partition, scala.collection.Iterator[] inputs) {
        messages = inputs[0];
        allocator = ArrowUtils.rootAllocator().newChildAllocator("rows of a gpujoin task", 0L, Long.MAX_VALUE);
        TaskContext.get().addTaskCompletionListener((TaskCompletionListener) this);
    }

    public boolean hasNext() throws IOException {
        while (!rows.hasNext()) {
            if (allocator == null) {
                return false;
            }
            if (!messages.hasNext()) {
                close();
                return false;
            }
            load((byte[]) messages.next());
        }
        return true;
    }

    public InternalRow next() {
        return (InternalRow) rows.next();
    }

    public void onTaskCompletion(TaskContext task) {
        close();
    }

    /** Does nothing: rows are not buffered. */
    protected void processNext() {}

    private void load(byte[] message) throws IOException {
        if (root == null) {
            root = VectorSchemaRoot.create(Schema.fromJSON(schema), allocator);
            loader = new VectorLoader(root);
            ColumnVector[] columns = new ColumnVector[root.getFieldVectors().size()];
            for (int i = 0; i < columns.length; i++) {
                columns[i] = new ArrowColumnVector(root.getVector(i));
            }
            batch = new ColumnarBatch(columns);
        } else {
            root.clear();
        }
        ArrowRecordBatch read = ArrowConverters$.MODULE$.loadBatch(message, allocator);
        try {
            loader.load(read);
        } finally {
            read.close();
        }
        batch.setNumRows(root.getRowCount());
        rows = batch.rowIterator();
    }

    private void close() {
        rows = Collections.emptyIterator();
        if (allocator != null) {
            if (root != null) {
                root.close();
            }
            allocator.close();
            allocator = null;
        }
    }
}

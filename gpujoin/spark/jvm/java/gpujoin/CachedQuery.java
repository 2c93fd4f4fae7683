package gpujoin;

import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.columnar.CachedRDDBuilder;
import scala.Option;
import scala.runtime.AbstractFunction0;

/** Computes the rows of a cached query as one execution of its own, by a job that does nothing else. */
public final class CachedQuery extends AbstractFunction0 {
    private final QueryExecution query;
    private final CachedRDDBuilder rows;

    public CachedQuery(QueryExecution query, CachedRDDBuilder rows) {
        this.query = query;
        this.rows = rows;
    }

    /** Puts all rows where the builder keeps them. */
    public void compute() {
        SQLExecution.withNewExecutionId(query, Option.empty(), this);
    }

    public Object apply() {
        return Long.valueOf(rows.cachedColumnBuffers().count());
    }
}

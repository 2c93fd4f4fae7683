package gpujoin;

import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.hadoop.fs.Path;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.ExpressionSet;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Tells what a relation of Delta Lake reads: its files in the snapshot that Spark's plan has, and how they are read.
 *
 * Objects of Delta are called by the names of their methods, so that none of its classes need be there.
 */
public final class DeltaFiles {
    private static final String PACKAGE = "org.apache.spark.sql.delta.";
    private static final String FORMAT = PACKAGE + "DeltaParquetFileFormat";
    /** Has the files that Delta has chosen for a query. */
    private static final String PREPARED = PACKAGE + "stats.PreparedDeltaFileIndex";
    /** Has the files that a command of Delta rewrites. */
    private static final String BATCH = PACKAGE + "files.TahoeBatchFileIndex";

    private final HadoopFsRelation relation;
    private final Object index;
    private final Calls calls = new Calls();

    public DeltaFiles(HadoopFsRelation relation) {
        this.relation = relation;
        this.index = relation.location();
    }

    public static boolean isDelta(HadoopFsRelation relation) {
        return relation.fileFormat().getClass().getName().equals(FORMAT);
    }

    /**
     * What it reads; under "obstacle" why that is not told.
     *
     * @param conditions those on its rows in the plan
     */
    public Map facts(List conditions) throws Exception {
        HashMap facts = new HashMap();
        try {
            Object format = relation.fileFormat();
            TreeSet features = new TreeSet();
            int version = reader(calls.of(format, "protocol"), features);
            facts.put("version", Integer.valueOf(Math.max(version, reader(calls.of(index, "protocol"), features))));
            facts.put("features", new ArrayList(features));
            facts.put("mapping", calls.of(calls.of(format, "columnMappingMode"), "name"));
            facts.put("reference", ((StructType) calls.of(format, "referenceSchema")).json());
            if (is(format, "hasTablePath") || is(format, "isCDCRead")) {
                facts.put("obstacle", "a command of Delta looks for deleted or changed rows in it");
                return facts;
            }
            if (((Option) calls.of(index, "rowIndexFilters")).isDefined()) {
                facts.put("obstacle", "only some rows of its files are read");
                return facts;
            }
            Seq chosen = chosen(conditions);
            if (chosen == null) {
                facts.put("obstacle", "its files are listed by " + index.getClass().getSimpleName() + ", not chosen yet");
                return facts;
            }
            ArrayList files = new ArrayList();
            for (Iterator each = chosen.iterator(); each.hasNext();) {
                files.add(file(each.next()));
            }
            facts.put("files", files);
            boolean isPrepared = index.getClass().getName().equals(PREPARED);
            facts.put("snapshot", isPrepared ? calls.of(calls.of(index, "preparedScan"), "version") : null);
        } catch (NoSuchMethodException unknown) {
            facts.put("obstacle", "this release of Delta does not tell its files as others do: " + unknown.getMessage());
        }
        return facts;
    }

    private boolean is(Object object, String name) throws Exception {
        return Boolean.TRUE.equals(calls.of(object, name));
    }

    /** The version of a reader that a protocol asks for; adds the features that it must know. */
    private int reader(Object protocol, TreeSet features) throws Exception {
        Option named = (Option) calls.of(protocol, "readerFeatures");
        if (named.isDefined()) {
            features.addAll(CollectionConverters.asJava((scala.collection.Set) named.get()));
        }
        return ((Integer) calls.of(protocol, "minReaderVersion")).intValue();
    }

    /** The files of the snapshot; null where none is chosen. */
    private Seq chosen(List conditions) throws Exception {
        String name = index.getClass().getName();
        if (name.equals(BATCH)) {
            return (Seq) calls.of(index, "addFiles");
        }
        if (!name.equals(PREPARED)) {
            return null;
        }
        Object scan = calls.of(index, "preparedScan");
        if (isOf(scan, conditions)) {
            return (Seq) ((Seq) calls.of(scan, "files")).distinct();
        }
        Seq none = CollectionConverters.asScala(new ArrayList()).toSeq();
        Class[] types = new Class[] {Seq.class, Seq.class};
        return (Seq) calls.of(index, "matchingFiles", types, new Object[] {none, none});
    }

    /**
     * Whether files were left out of a prepared scan only by conditions that the rows still have to meet.
     *
     * Delta prepares the scan of a table once for all its uses in a query that have the same conditions, with the
     * columns of one of them: columns of a table are the same if their names are.
     */
    private boolean isOf(Object scan, List conditions) throws Exception {
        ExpressionSet unused = (ExpressionSet) calls.of(scan, "unusedFilters");
        HashMap columns = new HashMap();
        for (Object condition : conditions) {
            for (Iterator each = ((Expression) condition).references().iterator(); each.hasNext();) {
                Attribute column = (Attribute) each.next();
                columns.put(column.name(), column);
            }
        }
        Iterator filters = ((ExpressionSet) calls.of(scan, "allFilters")).iterator();
        while (filters.hasNext()) {
            Expression filter = (Expression) filters.next();
            boolean met = unused.contains(filter);
            Expression own = met ? filter : withColumns(filter, columns);
            for (int i = 0; !met && i < conditions.size(); i++) {
                met = ((Expression) conditions.get(i)).semanticEquals(own);
            }
            if (!met) {
                return false;
            }
        }
        return true;
    }

    /** An expression over columns of the same names. */
    private static Expression withColumns(Expression expression, HashMap columns) {
        HashMap entries = new HashMap();
        for (Iterator each = expression.references().iterator(); each.hasNext();) {
            Attribute column = (Attribute) each.next();
            if (columns.containsKey(column.name())) {
                entries.put(column, columns.get(column.name()));
            }
        }
        return (Expression) expression.transform(PythonUtils.toScalaMap(entries));
    }

    /** Path and size of a file, the values of its partition, and its deletion vector, if it has one. */
    private List file(Object added) throws Exception {
        ArrayList file = new ArrayList();
        Class[] text = new Class[] {String.class};
        file.add(calls.of(index, "absolutePath", text, new Object[] {calls.of(added, "path")}).toString());
        file.add(calls.of(added, "size"));
        file.add(values(calls.of(added, "partitionValues")));
        Object vector = calls.of(added, "deletionVector");
        file.add(vector == null || is(vector, "isEmpty") ? null : vector(vector));
        return file;
    }

    private List values(Object partition) throws Exception {
        ArrayList values = new ArrayList();
        StructField[] fields = relation.partitionSchema().fields();
        if (fields.length > 0) {
            Class[] types = new Class[] {scala.collection.immutable.Map.class};
            InternalRow row = (InternalRow) calls.of(index, "getPartitionValuesRow", types, new Object[] {partition});
            for (int i = 0; i < fields.length; i++) {
                values.add(row.isNullAt(i) ? null : row.get(i, fields[i].dataType()));
            }
        }
        return values;
    }

    /** Path, offset, length, number of rows and bitmap of a vector, of which the bitmap is inline if there is no path. */
    private List vector(Object vector) throws Exception {
        ArrayList about = new ArrayList();
        boolean inline = is(vector, "isInline");
        Class[] types = new Class[] {Path.class};
        Object[] table = new Object[] {calls.of(index, "path")};
        about.add(inline ? null : calls.of(vector, "absolutePath", types, table).toString());
        Option offset = (Option) calls.of(vector, "offset");
        about.add(offset.isDefined() ? offset.get() : Integer.valueOf(0));
        about.add(calls.of(vector, "sizeInBytes"));
        about.add(calls.of(vector, "cardinality"));
        about.add(inline ? Base64.getEncoder().encodeToString((byte[]) calls.of(vector, "inlineData")) : null);
        return about;
    }
}

package gpujoin;

import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.sql.connector.read.Scan;

/**
 * Tells what a scan of Iceberg reads: its files, their deletes and its schema, as maps, lists, texts and numbers.
 *
 * Objects of Iceberg are called by the names of their methods, so that none of its classes need be there.
 */
public final class IcebergScan {
    private static final String PACKAGE = "org.apache.iceberg.";

    private final Scan scan;
    private final Calls calls = new Calls();
    private final HashMap specs = new HashMap();
    private final ArrayList deletes = new ArrayList();
    private final HashMap deleteNumbers = new HashMap();
    private final LinkedHashMap files = new LinkedHashMap();
    private final HashSet places = new HashSet();
    private String opener = "";
    private Configuration configuration;
    private Object io;

    public IcebergScan(Scan scan) {
        this.scan = scan;
    }

    /** What it reads; under "obstacle" why that is not told. */
    public Map facts() throws Exception {
        HashMap facts = new HashMap();
        try {
            Object table = inherited("table");
            Object projection = inherited("projection");
            if (projection == null) {
                projection = inherited("expectedSchema"); // before 1.11
            }
            Collection tasks = (Collection) inherited("tasks");
            if (tasks == null) {
                facts.put("obstacle", "this release of Iceberg does not tell what it reads as others do");
                return facts;
            }
            io = opener(table);
            facts.put("snapshot", inherited("snapshotId"));
            facts.put("version", ofClass("TableUtil", "formatVersion", "Table", table));
            facts.put("projection", ofClass("SchemaParser", "toJson", "Schema", projection));
            facts.put("table", ofClass("SchemaParser", "toJson", "Schema", calls.of(table, "schema")));
            for (Object task : tasks) {
                if (!Boolean.TRUE.equals(calls.of(task, "isFileScanTask"))
                        || Boolean.TRUE.equals(calls.of(task, "isDataTask"))) {
                    facts.put("obstacle", "its rows are not those of data files");
                    return facts;
                }
                add(task);
            }
            for (Object location : files.keySet()) {
                open((String) location);
            }
            for (Object delete : deletes) {
                open((String) ((Map) delete).get("location"));
            }
        } catch (ReflectiveOperationException unknown) {
            if (unknown instanceof java.lang.reflect.InvocationTargetException) {
                throw unknown;
            }
            facts.put("obstacle", "this release of Iceberg does not tell what it reads as others do");
        }
        facts.put("opener", opener);
        facts.put("specs", specs);
        facts.put("deletes", deletes);
        facts.put("files", new ArrayList(files.values()));
        return facts;
    }

    /** The configuration of Hadoop by which its files are opened; null where there are none. */
    public Configuration configuration() {
        return configuration;
    }

    /** What its files are opened by: properties, and credentials for the beginnings of locations. */
    public Map properties() throws Exception {
        ArrayList credentials = new ArrayList();
        if (has(io, "credentials")) {
            for (Object each : (List) calls.of(io, "credentials")) {
                HashMap credential = new HashMap();
                credential.put("prefix", calls.of(each, "prefix"));
                credential.put("config", new HashMap((Map) calls.of(each, "config")));
                credentials.add(credential);
            }
        }
        HashMap properties = new HashMap();
        properties.put("properties", new HashMap((Map) calls.of(io, "properties")));
        properties.put("credentials", credentials);
        return properties;
    }

    /** Opens a first file of each place: the class of what is opened, and its configuration, are those of all. */
    private void open(String location) throws Exception {
        int key = location.indexOf('/', location.indexOf("://") < 0 ? 0 : location.indexOf("://") + 3);
        if (!places.add(location.substring(0, Math.max(0, key)))) {
            return;
        }
        Object file = calls.of(io, "newInputFile", new Class[] {String.class}, new Object[] {location});
        if (!file.getClass().getName().equals(PACKAGE + "hadoop.HadoopInputFile")) {
            String name = file.getClass().getName();
            opener = opener.isEmpty() || opener.equals(name) ? name : opener + " and " + name;
        } else {
            configuration = (Configuration) calls.of(file, "getConf");
        }
    }

    /** Adds what a task reads of a file to what others read of it. */
    private void add(Object task) throws Exception {
        Object file = calls.of(task, "file");
        String location = (String) calls.of(file, "location");
        Map about = (Map) files.get(location);
        if (about == null) {
            about = content(file);
            Object spec = calls.of(file, "specId");
            ArrayList fields = fields(spec.toString(), calls.of(task, "spec"));
            about.put("spec", spec.toString());
            about.put("values", values(calls.of(file, "partition"), fields));
            ArrayList numbers = new ArrayList();
            for (Object delete : (List) calls.of(task, "deletes")) {
                numbers.add(Integer.valueOf(numberOf(delete)));
            }
            about.put("deletes", numbers);
            about.put("ranges", new ArrayList());
            List offsets = (List) calls.of(file, "splitOffsets");
            about.put("first", offsets == null || offsets.isEmpty() ? Integer.valueOf(4) : offsets.get(0));
            files.put(location, about);
        }
        ArrayList range = new ArrayList();
        range.add(calls.of(task, "start"));
        range.add(calls.of(task, "length"));
        ((ArrayList) about.get("ranges")).add(range);
    }

    private Map content(Object file) throws Exception {
        HashMap about = new HashMap();
        about.put("location", calls.of(file, "location"));
        about.put("format", calls.of(file, "format").toString());
        about.put("size", calls.of(file, "fileSizeInBytes"));
        about.put("rows", calls.of(file, "recordCount"));
        about.put("encrypted", Boolean.valueOf(calls.of(file, "keyMetadata") != null));
        return about;
    }

    /** Numbers a file of deletes, or a part of one. */
    private int numberOf(Object delete) throws Exception {
        Object offset = calls.of(delete, "contentOffset");
        String key = calls.of(delete, "location") + "@" + offset;
        if (!deleteNumbers.containsKey(key)) {
            Map about = content(delete);
            about.put("content", calls.of(delete, "content").toString());
            about.put("offset", offset);
            about.put("length", calls.of(delete, "contentSizeInBytes"));
            about.put("data", calls.of(delete, "referencedDataFile"));
            about.put("ids", calls.of(delete, "equalityFieldIds"));
            deleteNumbers.put(key, Integer.valueOf(deletes.size()));
            deletes.add(about);
        }
        return ((Integer) deleteNumbers.get(key)).intValue();
    }

    /** The fields of a spec: the id of the column that each is computed of, and the transform. */
    private ArrayList fields(String number, Object spec) throws Exception {
        ArrayList fields = (ArrayList) specs.get(number);
        if (fields == null) {
            fields = new ArrayList();
            for (Object field : (List) calls.of(spec, "fields")) {
                ArrayList about = new ArrayList();
                about.add(calls.of(field, "sourceId"));
                about.add(calls.of(field, "transform").toString());
                fields.add(about);
            }
            specs.put(number, fields);
        }
        return fields;
    }

    private ArrayList values(Object partition, ArrayList fields) throws Exception {
        ArrayList values = new ArrayList();
        Class[] types = new Class[] {int.class, Class.class};
        for (int i = 0; i < fields.size(); i++) {
            Object[] place = new Object[] {Integer.valueOf(i), Object.class};
            values.add(plain(calls.of(partition, "get", types, place)));
        }
        return values;
    }

    /** A value as PlanReader writes those of Spark; an empty map for one of a type that is not covered. */
    private static Object plain(Object value) {
        if (value == null || value instanceof Boolean || value instanceof Integer || value instanceof Long) {
            return value;
        }
        if (value instanceof CharSequence || value instanceof BigDecimal) {
            return value.toString();
        }
        HashMap other = new HashMap();
        if (value instanceof ByteBuffer) {
            ByteBuffer bytes = (ByteBuffer) ((ByteBuffer) value).duplicate();
            byte[] copy = new byte[bytes.remaining()];
            bytes.get(copy);
            other.put("bytes", Base64.getEncoder().encodeToString(copy));
        }
        return other;
    }

    /** What a method of the scan's class, or of one that it extends, gives; null: there is no such method. */
    private Object inherited(String name) throws Exception {
        for (Class type = scan.getClass(); type != null; type = type.getSuperclass()) {
            try {
                Method method = type.getDeclaredMethod(name, new Class[0]);
                method.setAccessible(true);
                return method.invoke(scan, new Object[0]);
            } catch (NoSuchMethodException above) {
                continue;
            }
        }
        return null;
    }

    private static boolean has(Object object, String name) {
        try {
            return object.getClass().getMethod(name, new Class[0]) != null;
        } catch (NoSuchMethodException none) {
            return false;
        }
    }

    /** What opens the files: what the scan has for that, or the table. */
    private Object opener(Object table) throws Exception {
        for (Class type = scan.getClass(); type != null; type = type.getSuperclass()) {
            try {
                Field field = type.getDeclaredField("fileIO");
                field.setAccessible(true);
                return ((Supplier) field.get(scan)).get();
            } catch (NoSuchFieldException above) {
                continue;
            }
        }
        return calls.of(table, "io"); // before 1.11
    }

    /** What a static method of a class of Iceberg gives for an object. */
    private Object ofClass(String name, String method, String parameter, Object argument) throws Exception {
        ClassLoader loader = scan.getClass().getClassLoader();
        Class[] types = new Class[] {loader.loadClass(PACKAGE + parameter)};
        return loader.loadClass(PACKAGE + name).getMethod(method, types).invoke(null, new Object[] {argument});
    }
}

package gpujoin;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.WeakHashMap;
import java.util.function.BiFunction;
import org.apache.hadoop.fs.Path;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.optimizer.ReplaceCTERefWithRepartition;
import org.apache.spark.sql.catalyst.plans.logical.AppendData;
import org.apache.spark.sql.catalyst.plans.logical.CTERelationDef;
import org.apache.spark.sql.catalyst.plans.logical.CollectMetrics;
import org.apache.spark.sql.catalyst.plans.logical.Command;
import org.apache.spark.sql.catalyst.plans.logical.CommandResult;
import org.apache.spark.sql.catalyst.plans.logical.DeserializeToObject;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.OverwriteByExpression;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Subquery;
import org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand;
import org.apache.spark.sql.catalyst.plans.logical.WithCTE;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.catalyst.trees.TreeNodeTag;
import org.apache.spark.sql.catalyst.trees.TreePattern;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.write.V1Write;
import org.apache.spark.sql.execution.columnar.InMemoryRelation;
import org.apache.spark.sql.execution.command.DataWritingCommand;
import org.apache.spark.sql.execution.datasources.InsertIntoHadoopFsRelationCommand;
import org.apache.spark.sql.execution.datasources.WriteFiles;
import org.apache.spark.unsafe.Platform;
import py4j.ClientServerConnection;
import py4j.GatewayServer;
import py4j.Py4JNetworkException;
import py4j.Py4JPythonClient;
import py4j.PythonClient;
import scala.Option;
import scala.collection.immutable.Seq;

/**
 * The optimizer rule that asks Python for a plan, for queries and for the queries of writes.
 *
 * <p>Whatever has no join, aggregation, window, Python function or limit of an order is answered here, without a call to Python. So is
 * a plan that the rule has made: Spark applies its rules until nothing changes. And so is what planning itself runs, since the rule is
 * suspended while Python plans.
 *
 * <p>Of a stream each micro-batch is a query by itself. A stream whose state the rule's plans have begun to keep goes on
 * with them, also when the rule is disabled, or fails: Spark's own plan would begin without that state.
 *
 * <p>The callback is a function of the query and of a text, "KIND SESSION THREAD": what the query is optimized for, one
 * of the constants below, the id of the session, and that of the thread; of a micro-batch also the ids of the stream and
 * of its run, and its number. It gives the plan that takes the query's
 * place, null to keep the query, or an exception to throw.
 */
public final class PythonRule extends Rule {
    private static final String QUERY = "query";
    private static final String WRITE = "write";
    private static final String EXPLAIN = "explain";
    /** A query whose rows a Spark Connect server sends to a client. */
    private static final String CLIENT = "client";
    /** How that begins which is asked by a client. */
    private static final String QUESTION = "question-";
    /** A micro-batch in which streams are joined. */
    private static final String MICRO_BATCH = "micro-batch";
    /** One in which a stream is joined with rows that are no stream. */
    private static final String WITH_TABLES = "micro-batch-with-tables";

    /** What names of gpujoin's functions hold. */
    private static final String MARK = "gpujoin_";

    /** How classes of Spark's Connect server are named, and those that run what a client has asked for. */
    private static final String CONNECT = "org.apache.spark.sql.connect.";
    private static final String CONNECT_EXECUTION = CONNECT + "execution.";

    private static final TreeNodeTag PLANNED = new TreeNodeTag("gpujoin.planned");
    /** What accelerate() notes on its results. */
    private static final TreeNodeTag ACCELERATED = new TreeNodeTag("gpujoin.query");
    /** A local property of the thread that runs a stream: the id of the query. */
    private static final String STREAM = "sql.streaming.queryId";
    /** Another: the id of its run, by which Spark cancels the run's jobs. */
    private static final String RUN = "spark.jobGroup.id";
    /** A third: the number of the micro-batch. */
    private static final String BATCH = "streaming.sql.batchId";

    private final BiFunction callback;
    private final GatewayServer gateway;
    private final Suspension suspension;
    private final boolean gpuJoinsOnly;
    private final Map sessions = Collections.synchronizedMap(new WeakHashMap());
    /** Ids of the runs of streams whose state is kept by plans of the rule. */
    private final Map runs = Collections.synchronizedMap(new HashMap());
    private volatile boolean disabled = false;

    /**
     * @param callback in Python
     * @param gateway py4j's server, with the client that calls Python; a client that has one connection per thread
     *     pins threads: what Python calls during a callback runs in the thread that called back
     * @param gpuJoinsOnly whether Python is asked only for plans with joins that gpu_join made
     */
    public PythonRule(BiFunction callback, GatewayServer gateway, Boolean gpuJoinsOnly) {
        this.callback = callback;
        this.gateway = gateway;
        this.suspension = new Suspension(gateway.getCallbackClient() instanceof PythonClient);
        this.gpuJoinsOnly = gpuJoinsOnly.booleanValue();
    }

    public TreeNode apply(TreeNode plan) {
        LogicalPlan given = withMergedSubqueries((LogicalPlan) plan);
        if (given.isStreaming()) {
            return microBatch(given);
        }
        if (disabled || suspension.isInForce()) {
            return plan;
        }
        if (isPlanned(given) || given.getTagValue(ACCELERATED).isDefined()) {
            return plan;
        }
        LogicalPlan query = queryOf(given);
        query = query == null ? null : GpuAsOfRule.pushed(query);
        if (query == null || !mayBeReplaced(query) || !isConcernedWith(query)) {
            return plan;
        }
        String kind = kindOf(given);
        Option active = SparkSession.getActiveSession();
        if (kind == null || active.isEmpty()) {
            return plan;
        }
        if (kind == CLIENT && query.containsPattern(TreePattern.COLLECT_METRICS())) {
            return plan; // the server looks for what was observed in the execution that sends the rows
        }
        SparkSession session = (SparkSession) active.get();
        LogicalPlan replacement = ask(session, query, kind, "");
        if (replacement == null) {
            return plan;
        }
        LogicalPlan changed = withQuery(given, replacement);
        changed.setTagValue(PLANNED, Boolean.TRUE);
        return changed;
    }

    /** Plans a micro-batch of a stream that is joined. */
    private LogicalPlan microBatch(LogicalPlan plan) {
        Option active = SparkSession.getActiveSession();
        if (isPlanned(plan) || active.isEmpty() || suspension.isInForceHere()) {
            return plan;
        }
        int joined = mostStreamsJoined(plan);
        if (joined == 0) {
            return plan;
        }
        SparkSession session = (SparkSession) active.get();
        String stream = session.sparkContext().getLocalProperty(STREAM);
        String run = session.sparkContext().getLocalProperty(RUN);
        String batch = session.sparkContext().getLocalProperty(BATCH);
        if (stream == null || run == null || batch == null) {
            return plan;
        }
        boolean begun = runs.containsKey(run);
        if (!begun && !isConcernedWith(plan)) {
            return plan;
        }
        String which = " " + stream + " " + run + " " + batch;
        if (joined == 1) {
            LogicalPlan withTables = ask(session, GpuAsOfRule.pushed(plan), WITH_TABLES, which);
            if (withTables == null) {
                return plan;
            }
            withTables.setTagValue(PLANNED, Boolean.TRUE);
            return withTables;
        }
        LogicalPlan replacement = ask(session, plan, MICRO_BATCH, which);
        if (replacement != null) {
            runs.put(run, Boolean.TRUE);
            replacement.setTagValue(PLANNED, Boolean.TRUE);
            return replacement;
        }
        if (begun) {
            throw new IllegalStateException(
                "gpujoin keeps the state of this stream, and its Python process can no longer be asked for a plan;"
                    + " start the query again from its checkpoint, in a session with gpujoin");
        }
        return plan;
    }

    /** How many inputs of a join are streams, of the join in a plan of which the most are. */
    private static int mostStreamsJoined(LogicalPlan plan) {
        if (!plan.containsPattern(TreePattern.JOIN())) {
            return 0;
        }
        int most = 0;
        boolean joins = plan instanceof Join || plan instanceof GpuAsOfJoin;
        int ofThis = 0;
        for (int i = 0; i < plan.children().size(); i++) {
            LogicalPlan child = (LogicalPlan) plan.children().apply(i);
            ofThis += joins && child.isStreaming() ? 1 : 0;
            most = Math.max(most, mostStreamsJoined(child));
        }
        return Math.max(most, ofThis);
    }

    /** Switches the rule off for good, in the sessions too that were cloned with it; streams that it has begun go on. */
    public void disable() {
        disabled = true;
    }

    /** Tells whether the rule plans all queries that have a join, an aggregation, a window or a Python function. */
    public boolean isForEveryQuery() {
        return !disabled && !gpuJoinsOnly;
    }

    /** Tells whether the rule plans a query for the joins in it; the plan may be analyzed or optimized. */
    public boolean isConcernedWith(LogicalPlan query) {
        return !disabled && (!gpuJoinsOnly || GpuJoinHint.isIn(query));
    }

    public boolean isDisabled() {
        return disabled;
    }

    /** Adds the rule to those of a session, after the user's own, in the place of another of its kind. */
    public void addTo(SparkSession session) {
        List rules = rulesOf(session);
        int place = rules.size();
        for (int i = rules.size() - 1; i >= 0; i--) {
            if (rules.get(i) instanceof PythonRule) {
                rules.remove(i);
                place--;
            } else if (rules.get(i) instanceof GpuAsOfRule) {
                place = i;
            }
        }
        rules.add(place, this);
        sessions.put(session, Boolean.TRUE);
        try {
            IslandStrategy.addTo(session);
        } catch (LinkageError lacking) { // another build of Spark: its own nodes do the same
            log().debug("plans do not show what islands do", lacking);
        }
        session.experimental().extraOptimizations_$eq(PythonUtils.toSeq(rules));
    }

    /** Takes the rule out of those of a session. */
    public void removeFrom(SparkSession session) {
        List rules = rulesOf(session);
        rules.remove(this);
        try {
            IslandStrategy.removeFrom(session);
        } catch (LinkageError lacking) {
            log().debug("there is no strategy of gpujoin's", lacking);
        }
        session.experimental().extraOptimizations_$eq(PythonUtils.toSeq(rules));
    }

    /** Gives the session of an id, of those that have asked. */
    public SparkSession session(String id) {
        synchronized (sessions) {
            for (Iterator each = sessions.keySet().iterator(); each.hasNext();) {
                SparkSession session = (SparkSession) each.next();
                if (session.sessionUUID().equals(id)) {
                    return session;
                }
            }
        }
        return null;
    }

    /** From now on the rule does nothing, in this thread if calls keep to threads; until resume() has been called as often. */
    public void suspend() {
        suspension.begin();
    }

    public void resume() {
        suspension.end();
    }

    /** Optimizes a plan as Spark does without the rule; as-of joins are in it as they were made. */
    public LogicalPlan optimized(SparkSession session, LogicalPlan plan) {
        suspension.begin();
        GpuAsOfRule.keep();
        try {
            return Dataset.ofRows(session, plan).queryExecution().optimizedPlan();
        } finally {
            GpuAsOfRule.keepNoLonger();
            suspension.end();
        }
    }

    /** As optimized(), of an analyzed plan of a stream, of which Spark makes no optimized plan by itself. */
    public LogicalPlan optimizedStream(SparkSession session, LogicalPlan plan) {
        suspension.begin();
        GpuAsOfRule.keep();
        try {
            return (LogicalPlan) session.sessionState().optimizer().execute(plan);
        } finally {
            GpuAsOfRule.keepNoLonger();
            suspension.end();
        }
    }

    /** Tells whether the rule has made a plan, one in its subqueries, or one whose rows it reads from the cache. */
    public static boolean holdsPlanned(LogicalPlan plan) {
        if (isPlanned(plan)) {
            return true;
        }
        if (plan instanceof InMemoryRelation) {
            return ((InMemoryRelation) plan).cacheBuilder().cachedPlan().toString().contains(MARK);
        }
        return anyPlanned(plan.children()) || anyPlanned(plan.subqueries());
    }

    /** Gives a plan the columns of the one that it stands for, under their names and ids. */
    public static LogicalPlan withOutputOf(LogicalPlan like, LogicalPlan plan) {
        List columns = new ArrayList();
        boolean same = true;
        for (int i = 0; i < like.output().size(); i++) {
            Attribute wanted = (Attribute) like.output().apply(i);
            Attribute column = (Attribute) plan.output().apply(i);
            if (column.exprId().equals(wanted.exprId())) {
                columns.add(column);
            } else {
                Option metadata = Option.apply(wanted.metadata().isEmpty() ? null : wanted.metadata());
                Seq nothing = PythonUtils.toSeq(new ArrayList());
                columns.add(new Alias(column, wanted.name(), wanted.exprId(), wanted.qualifier(), metadata, nothing));
                same = false;
            }
        }
        return same ? plan : new Project(PythonUtils.toSeq(columns), plan);
    }

    /** Makes the exception that ends a query; Python knows by the number what it stands for. */
    public Stop stop(int number, String message, Object cause) {
        return new Stop(number, message, (Throwable) cause);
    }

    private LogicalPlan ask(SparkSession session, LogicalPlan query, String kind, String further) {
        boolean wasConnected = connectionOfThread() != null;
        Object answer;
        try {
            answer = call(session, query, kind, further);
        } catch (RuntimeException problem) {
            log().debug("gpujoin cannot be asked for a plan", problem);
            if (wasConnected && (problem instanceof Py4JNetworkException || connectionOfThread() == null)) {
                // Python waited for this query, and was interrupted: nobody waits for it any more.
                throw new IllegalStateException("the program was interrupted while gpujoin planned its query", problem);
            }
            return null;
        }
        if (answer instanceof Stop && kind == CLIENT && ((Stop) answer).getCause() != null) {
            Platform.throwException(((Stop) answer).getCause()); // Spark's own error, as the server tells its clients
        }
        if (answer instanceof RuntimeException) {
            throw (RuntimeException) answer;
        }
        return (LogicalPlan) answer;
    }

    /** Calls Python, with the rule suspended in the meantime. */
    private Object call(SparkSession session, Object subject, String kind, String further) {
        sessions.put(session, Boolean.TRUE);
        boolean wasConnected = connectionOfThread() != null;
        suspension.begin();
        try {
            String thread = String.valueOf(Thread.currentThread().getId());
            return callback.apply(subject, kind + " " + session.sessionUUID() + " " + thread + further);
        } finally {
            suspension.end();
            if (!wasConnected) {
                disconnectThread();
            }
        }
    }

    /** Answers what a client asks about a query: "explain", or "metrics" of the explanations of some names. */
    String report(SparkSession session, Dataset frame, String question, String names) {
        Object answer = call(session, frame, QUESTION + question, names);
        if (answer instanceof RuntimeException) {
            throw (RuntimeException) answer;
        }
        return (String) answer;
    }

    /** Gives the open connection to Python that py4j keeps for this thread, or null. */
    private ClientServerConnection connectionOfThread() {
        Py4JPythonClient client = gateway.getCallbackClient();
        if (!(client instanceof PythonClient)) {
            return null;
        }
        ClientServerConnection connection = ((PythonClient) client).getPerThreadConnection();
        return connection == null || connection.getSocket() == null ? null : connection;
    }

    /**
     * Closes the connection that py4j has made for a callback from this thread.
     *
     * <p>Py4j keeps it open, with two sockets and a thread of Python, after its thread has ended; and Spark runs each
     * toArrow() and toPandas() in a new thread.
     */
    private void disconnectThread() {
        ClientServerConnection connection = connectionOfThread();
        if (connection != null) {
            ((PythonClient) gateway.getCallbackClient()).connectionStopped(connection);
            connection.shutdown();
        }
    }

    /**
     * Puts scalar subqueries of which Spark has made one in their places, as Spark will after the rules of a session.
     *
     * <p>Of <code>x BETWEEN (SELECT min(y) FROM t) AND (SELECT max(y) FROM t)</code> it makes a definition above the
     * query, as of a WITH clause, which gives a struct with both values. Until then the subqueries are references to it,
     * which mean nothing by themselves. A WITH clause of the query's own is kept.
     */
    private static LogicalPlan withMergedSubqueries(LogicalPlan plan) {
        if (!(plan instanceof WithCTE)) {
            return plan;
        }
        Seq definitions = ((WithCTE) plan).cteDefs();
        for (int i = 0; i < definitions.size(); i++) {
            if (!((CTERelationDef) definitions.apply(i)).underSubquery()) {
                return plan;
            }
        }
        return ReplaceCTERefWithRepartition.apply(plan);
    }

    /** What of a plan is a query whose rows are asked for; null if nothing is, or is another's to optimize. */
    private static LogicalPlan queryOf(LogicalPlan plan) {
        if (isAbove(plan)) {
            return queryOf((LogicalPlan) plan.children().head());
        }
        return plan instanceof Subquery || plan instanceof Command || plan instanceof CommandResult ? null : plan;
    }

    /** Whether a node takes the rows of a query as they are: to write, convert, or observe them. */
    private static boolean isAbove(LogicalPlan plan) {
        return isWrite(plan) || plan instanceof WriteFiles || plan instanceof DeserializeToObject
            || plan instanceof CollectMetrics;
    }

    private static boolean isWrite(LogicalPlan plan) {
        boolean writes = plan instanceof DataWritingCommand || plan instanceof V2WriteCommand;
        return writes && plan.children().size() == 1;
    }

    private static LogicalPlan withQuery(LogicalPlan plan, LogicalPlan query) {
        if (!isAbove(plan)) {
            return query;
        }
        LogicalPlan child = withQuery((LogicalPlan) plan.children().head(), query);
        return (LogicalPlan) plan.withNewChildren(sequence(child));
    }

    private static boolean mayBeReplaced(LogicalPlan query) {
        return query.containsPattern(TreePattern.JOIN()) || query.containsPattern(TreePattern.AGGREGATE())
            || query.containsPattern(TreePattern.WINDOW()) || query.containsPattern(TreePattern.PYTHON_UDF())
            || query.containsPattern(TreePattern.SORT()) && query.containsPattern(TreePattern.LIMIT());
    }

    /**
     * What a query is optimized for; null where the rule keeps out. What a command runs by itself it may write.
     *
     * <p>Of a query that a Spark Connect client caches it keeps out: nothing stands around the client's actions that
     * would have Spark compute the rows anew where a task of gpujoin failed.
     */
    private static String kindOf(LogicalPlan plan) {
        boolean writes = isWrite(plan);
        boolean commanded = false;
        boolean cached = false;
        boolean ofServer = false;
        boolean ofClient = false;
        StackTraceElement[] frames = new Throwable().getStackTrace();
        for (int i = 0; i < frames.length; i++) {
            String name = frames[i].getClassName();
            if (name.endsWith(".command.ExplainCommand")) {
                return writes ? null : EXPLAIN;
            }
            commanded |= name.endsWith(".command.ExecutedCommandExec") || name.endsWith("ExecV1");
            cached |= name.endsWith(".execution.CacheManager");
            ofServer |= name.startsWith(CONNECT);
            ofClient |= name.startsWith(CONNECT_EXECUTION);
        }
        if (ofServer && cached) {
            return null;
        }
        if (ofClient && !writes && !commanded) {
            return CLIENT;
        }
        if (!writes) {
            return commanded ? WRITE : QUERY;
        }
        return isRefused(plan) || isWrittenAsRows(plan) ? null : WRITE;
    }

    /** Tells whether this thread is one of Spark's Connect server. */
    static boolean isInConnectServer() {
        StackTraceElement[] frames = new Throwable().getStackTrace();
        for (int i = 0; i < frames.length; i++) {
            if (frames[i].getClassName().startsWith(CONNECT)) {
                return true;
            }
        }
        return false;
    }

    /** Whether Spark will write nothing, for what is there; it fails, or returns. */
    private static boolean isRefused(LogicalPlan plan) {
        if (!(plan instanceof InsertIntoHadoopFsRelationCommand)) {
            return false;
        }
        InsertIntoHadoopFsRelationCommand insert = (InsertIntoHadoopFsRelationCommand) plan;
        SaveMode mode = insert.mode();
        if (mode != SaveMode.ErrorIfExists && mode != SaveMode.Ignore) {
            return false;
        }
        Path path = insert.outputPath();
        try {
            return path.getFileSystem(SparkSession.active().sessionState().newHadoopConf()).exists(path);
        } catch (java.io.IOException problem) {
            return false;
        }
    }

    /** Whether a table takes its rows from a query of its own, which the rule sees later. */
    private static boolean isWrittenAsRows(LogicalPlan plan) {
        Option write = Option.empty();
        if (plan instanceof AppendData) {
            write = ((AppendData) plan).write();
        } else if (plan instanceof OverwriteByExpression) {
            write = ((OverwriteByExpression) plan).write();
        }
        return write.isDefined() && write.get() instanceof V1Write;
    }

    private static boolean isPlanned(LogicalPlan plan) {
        return plan.getTagValue(PLANNED).isDefined();
    }

    private static boolean anyPlanned(scala.collection.Seq plans) {
        for (int i = 0; i < plans.size(); i++) {
            if (holdsPlanned((LogicalPlan) plans.apply(i))) {
                return true;
            }
        }
        return false;
    }

    private static List rulesOf(SparkSession session) {
        List rules = new ArrayList();
        Seq present = session.experimental().extraOptimizations();
        for (int i = 0; i < present.size(); i++) {
            rules.add(present.apply(i));
        }
        return rules;
    }

    private static Seq sequence(LogicalPlan plan) {
        return PythonUtils.toSeq(Collections.singletonList(plan));
    }

    /** Ends a query, for a reason that Python knows. */
    public static final class Stop extends RuntimeException {
        private final int number;

        public Stop(int number, String message, Throwable cause) {
            super(message, cause);
            this.number = number;
        }

        public int number() {
            return number;
        }
    }

    /** Counts how often the rule was suspended: by thread, or where calls from Python change threads, in all. */
    private static final class Suspension {
        private final boolean pinned;
        private final ThreadLocal ofThread = new ThreadLocal();
        private int ofAll = 0;

        Suspension(boolean pinned) {
            this.pinned = pinned;
        }

        boolean isInForce() {
            return depth() > 0;
        }

        /** As the other, of a thread that Python does not call: what planning runs in other threads is not meant. */
        boolean isInForceHere() {
            return pinned && depth() > 0;
        }

        void begin() {
            set(depth() + 1);
        }

        void end() {
            set(depth() - 1);
        }

        private synchronized int depth() {
            if (!pinned) {
                return ofAll;
            }
            Object depth = ofThread.get();
            return depth == null ? 0 : ((Integer) depth).intValue();
        }

        private synchronized void set(int depth) {
            if (!pinned) {
                ofAll = depth;
            } else if (depth == 0) {
                ofThread.remove();
            } else {
                ofThread.set(Integer.valueOf(depth));
            }
        }
    }
}

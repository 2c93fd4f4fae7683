package gpujoin;

import java.lang.reflect.Field;
import java.math.BigInteger;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.WeakHashMap;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.connect.proto.Relation;
import org.apache.spark.connect.proto.RelationCommon;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.catalyst.types.DataTypeUtils;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connect.planner.SparkConnectPlanner;
import org.apache.spark.sql.connect.plugin.RelationPlugin;
import org.apache.spark.sql.connect.plugin.SparkConnectPluginRegistry;
import org.apache.spark.sql.connect.plugin.SparkConnectPluginRegistry$;
import org.apache.spark.sql.connect.service.ExecuteHolder;
import org.apache.spark.sql.connect.service.SparkConnectService$;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.types.StructType;
import org.sparkproject.connect.protobuf.Any;
import org.sparkproject.connect.protobuf.InvalidProtocolBufferException;
import org.sparkproject.connect.protobuf.Message;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.runtime.AbstractFunction0;
import scala.runtime.AbstractFunction1;

/**
 * The Spark Connect server of this driver: it gives the optimizer rule to the sessions of clients, computes the rows of
 * their queries, and answers what they ask about these.
 *
 * <p>Sessions of clients have the extensions of the session that the server makes them from. So Spark asks here for a
 * rule of the analyzer of each, and that rule adds the other one when the session first analyzes a query, before it
 * optimizes one.
 *
 * <p>What a client asks is a relation that Spark does not know, an Any with one of the type URLs below. Its value is a
 * relation of the client's, a DataFrame, and its only row the answer, JSON. Queries that were planned are known by the ids
 * that clients give their DataFrames; a session that has ended takes these with it.
 */
public final class ConnectServer extends AbstractFunction1 implements RelationPlugin {
    /** How type URLs of questions begin; the rest of one is the question. */
    private static final String QUESTION = "gpujoin/";
    /** How threads are named that run operations of clients; the rest is the id of the operation. */
    private static final String THREAD = "SparkConnectExecuteThread_opId=";
    /** So many queries of a session are known. */
    private static final int MOST_RUNS = 64;

    private final Map injected = Collections.synchronizedMap(new WeakHashMap());
    private final Map runs = new WeakHashMap();
    private volatile PythonRule rule = null;
    private boolean answers = false;

    /** Gives a rule to the sessions that are made from now on with the extensions of this one. */
    public synchronized void adopt(SparkSession session, PythonRule given) {
        if (rule == null || rule.isDisabled()) {
            rule = given;
        }
        SparkSessionExtensions extensions = session.extensions();
        if (injected.put(extensions, Boolean.TRUE) == null) {
            extensions.injectPostHocResolutionRule(this);
        }
        if (!answers) {
            answers = true;
            answerQuestions();
        }
    }

    /** Has the server's registry of plugins hold this one; its setting takes names of classes in Spark's class path. */
    private void answerQuestions() {
        Seq present = SparkConnectPluginRegistry.relationRegistry();
        List plugins = new ArrayList();
        for (int i = 0; i < present.size(); i++) {
            plugins.add(present.apply(i));
        }
        plugins.add(this);
        try {
            Field field = SparkConnectPluginRegistry$.class.getDeclaredField("relationRegistryCache");
            field.setAccessible(true);
            field.set(SparkConnectPluginRegistry$.MODULE$, PythonUtils.toSeq(plugins));
        } catch (NoSuchFieldException problem) {
            throw new IllegalStateException("this release of Spark holds plugins of its Connect server elsewhere", problem);
        } catch (IllegalAccessException problem) {
            throw new IllegalStateException("plugins of Spark's Connect server cannot be set", problem);
        }
    }

    /** Called by Spark when it makes the analyzer of a session. */
    public Object apply(Object session) {
        return new Adoption(this, PythonRule.isInConnectServer() ? (SparkSession) session : null);
    }

    // -- queries ------------------------------------------------------------------------------------------------------

    /** Tells whether the rows of a plan have at most some bytes, as Spark estimates them. */
    public boolean areFew(LogicalPlan plan, long bytes) {
        return plan.stats().sizeInBytes().bigInteger().compareTo(BigInteger.valueOf(bytes)) <= 0;
    }

    /** Runs a plan as an execution of its own in the SQL tab, and gives one of its rows, with the same columns. */
    public LogicalPlan collect(SparkSession session, LogicalPlan plan) {
        QueryExecution execution = Dataset.ofRows(session, plan).queryExecution();
        Option name = Option.apply("collect");
        InternalRow[] rows = (InternalRow[]) SQLExecution.withNewExecutionId(execution, name, new Collecting(execution));
        List values = new ArrayList(rows.length);
        for (int i = 0; i < rows.length; i++) {
            values.add(rows[i]);
        }
        return new LocalRelation(execution.analyzed().output(), PythonUtils.toSeq(values), false, Option.empty());
    }

    /** Notes the name of the explanation of a query that this thread runs, if it is an operation of a client. */
    public void note(SparkSession session, String name) {
        String thread = Thread.currentThread().getName();
        if (!thread.startsWith(THREAD)) {
            return;
        }
        Seq holders = SparkConnectService$.MODULE$.executionManager().listExecuteHolders();
        for (int i = 0; i < holders.size(); i++) {
            ExecuteHolder holder = (ExecuteHolder) holders.apply(i);
            if (thread.equals(THREAD + holder.operationId())) {
                Set ids = new HashSet();
                addPlanIds(holder.request(), ids);
                add(session, new Run(holder.operationId(), ids, name));
                return;
            }
        }
    }

    private void add(SparkSession session, Run run) {
        synchronized (runs) {
            LinkedList ofSession = (LinkedList) runs.get(session);
            if (ofSession == null) {
                ofSession = new LinkedList();
                runs.put(session, ofSession);
            }
            ofSession.addFirst(run);
            if (ofSession.size() > MOST_RUNS) {
                ofSession.removeLast();
            }
        }
    }

    /** Gives the names of the explanations of the latest operation with a DataFrame in it, parted by spaces. */
    private String namesOf(SparkSession session, long id) {
        StringBuilder names = new StringBuilder();
        String operation = null;
        synchronized (runs) {
            LinkedList ofSession = (LinkedList) runs.get(session);
            Iterator each = ofSession == null ? Collections.EMPTY_LIST.iterator() : ofSession.iterator();
            while (each.hasNext()) {
                Run run = (Run) each.next();
                boolean isPartOfOne = operation != null && operation.equals(run.operation);
                if (isPartOfOne || (operation == null && run.ids.contains(Long.valueOf(id)))) {
                    operation = run.operation;
                    names.append(' ').append(run.name);
                }
            }
        }
        return names.toString();
    }

    private static void addPlanIds(Message message, Set ids) {
        if (message instanceof RelationCommon) {
            if (((RelationCommon) message).hasPlanId()) {
                ids.add(Long.valueOf(((RelationCommon) message).getPlanId()));
            }
            return;
        }
        for (Iterator each = message.getAllFields().values().iterator(); each.hasNext();) {
            Object value = each.next();
            if (value instanceof Message) {
                addPlanIds((Message) value, ids);
            } else if (value instanceof List) {
                for (Iterator part = ((List) value).iterator(); part.hasNext();) {
                    Object element = part.next();
                    if (element instanceof Message) {
                        addPlanIds((Message) element, ids);
                    }
                }
            }
        }
    }

    // -- questions ----------------------------------------------------------------------------------------------------

    /** Called by the server for a relation that Spark does not know. */
    public Optional transform(byte[] message, SparkConnectPlanner planner) {
        String question;
        Relation relation;
        try {
            Any any = Any.parseFrom(message);
            if (!any.getTypeUrl().startsWith(QUESTION)) {
                return Optional.empty();
            }
            question = any.getTypeUrl().substring(QUESTION.length());
            relation = Relation.parseFrom(any.getValue());
        } catch (InvalidProtocolBufferException problem) {
            return Optional.empty();
        }
        PythonRule current = rule;
        if (current == null || current.isDisabled()) {
            return Optional.empty();
        }
        SparkSession session = planner.session();
        Dataset frame = Dataset.ofRows(session, planner.transformRelation(relation));
        String names = namesOf(session, relation.getCommon().getPlanId());
        String answer = current.report(session, frame, question, names);
        StructType schema = new StructType().add("answer", "string");
        List rows = Collections.singletonList(RowFactory.create(new Object[] {answer}));
        return Optional.of(LocalRelation.fromExternalRows(DataTypeUtils.toAttributes(schema), PythonUtils.toSeq(rows)));
    }

    /** Adds the rule to a session of a client; to any other session it does nothing. */
    private static final class Adoption extends Rule {
        private final ConnectServer server;
        private final SparkSession session;
        private PythonRule adopted = null;

        Adoption(ConnectServer server, SparkSession session) {
            this.server = server;
            this.session = session;
        }

        public TreeNode apply(TreeNode plan) {
            PythonRule rule = server.rule;
            if (session != null && rule != null && rule != adopted && !rule.isDisabled()) {
                adopted = rule;
                rule.addTo(session);
            }
            return plan;
        }
    }

    /** A query of a client that was planned. */
    private static final class Run {
        final String operation;
        /** Those that the client has given the DataFrames in it. */
        final Set ids;
        final String name;

        Run(String operation, Set ids, String name) {
            this.operation = operation;
            this.ids = ids;
            this.name = name;
        }
    }

    private static final class Collecting extends AbstractFunction0 {
        private final QueryExecution execution;

        Collecting(QueryExecution execution) {
            this.execution = execution;
        }

        public Object apply() {
            return execution.executedPlan().executeCollect();
        }
    }
}

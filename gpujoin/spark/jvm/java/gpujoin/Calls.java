package gpujoin;

import java.lang.reflect.Method;
import java.util.HashMap;

/** Calls public methods by their names, of objects of packages that need not be there. */
public final class Calls {
    private final HashMap methods = new HashMap();

    /** What a method without parameters gives. */
    public Object of(Object object, String name) throws Exception {
        return method(object, name, new Class[0]).invoke(object, new Object[0]);
    }

    /** What a method with parameters of some types gives. */
    public Object of(Object object, String name, Class[] types, Object[] values) throws Exception {
        return method(object, name, types).invoke(object, values);
    }

    private Method method(Object object, String name, Class[] types) throws Exception {
        String key = object.getClass().getName() + "#" + name;
        Method method = (Method) methods.get(key);
        if (method == null) {
            method = object.getClass().getMethod(name, types);
            method.setAccessible(true);
            methods.put(key, method);
        }
        return method;
    }
}

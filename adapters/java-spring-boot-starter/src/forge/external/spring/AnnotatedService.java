package forge.external.spring;

import forge.external.EmptyInput;
import forge.external.Forge;
import forge.external.ForgeContext;
import forge.external.ForgeHandler;
import forge.external.ForgeRegistry;
import java.lang.annotation.Annotation;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Stream;
import org.springframework.aop.framework.AopProxyUtils;
import org.springframework.aop.framework.autoproxy.AutoProxyUtils;
import org.springframework.aop.scope.ScopedProxyUtils;
import org.springframework.aop.support.AopUtils;
import org.springframework.beans.factory.config.ConfigurableListableBeanFactory;
import org.springframework.core.MethodIntrospector;
import org.springframework.core.annotation.AnnotatedElementUtils;
import org.springframework.core.annotation.AnnotationAttributes;
import org.springframework.util.ClassUtils;
import org.springframework.util.ReflectionUtils;

/** The bean with {@link ForgeExternalService}. Needs its class only; the bean itself is looked up at each call. */
record AnnotatedService(ConfigurableListableBeanFactory factory, String bean, Class<?> type) {

    /** @throws IllegalStateException unless there is exactly one */
    static AnnotatedService find(ConfigurableListableBeanFactory factory) {
        List<AnnotatedService> found = new ArrayList<>();
        for (String bean : factory.getBeanNamesForType(Object.class, true, false)) {
            Class<?> type = ScopedProxyUtils.isScopedTarget(bean) ? null : userClass(factory, bean);
            if (type != null && AnnotatedElementUtils.hasAnnotation(type, ForgeExternalService.class)) {
                found.add(new AnnotatedService(factory, bean, type));
            }
        }
        if (found.size() == 1) return found.get(0);
        String beans = String.join(", ", found.stream().map(AnnotatedService::toString).sorted().toList());
        throw new IllegalStateException(found.isEmpty()
            ? "no bean has @ForgeExternalService, and the application defines no ForgeRegistry"
            : "a context has one @ForgeExternalService, but these beans have it: " + beans);
    }

    @Override
    public String toString() { return bean + " (" + type.getName() + ")"; }

    /** Class behind a proxy; null if it is not known yet. */
    private static Class<?> userClass(ConfigurableListableBeanFactory factory, String bean) {
        Class<?> type = AutoProxyUtils.determineTargetClass(factory, bean);
        if (type != null && Proxy.isProxyClass(type) && factory.containsSingleton(bean)) {
            type = AopProxyUtils.ultimateTargetClass(factory.getBean(bean));
        }
        return type == null ? null : ClassUtils.getUserClass(type);
    }

    ForgeRegistry registry() {
        var service = AnnotatedElementUtils.findMergedAnnotation(type, ForgeExternalService.class);
        List<Forge.ServiceOption> options = new ArrayList<>();
        options.add(Forge.framework(resolve(service.framework())));
        options.add(Forge.health(resolve(service.health())));
        options.add(Forge.maxCalls(service.maxCalls()));
        String baseUrl = resolve(service.baseUrl());
        if (!baseUrl.isEmpty()) options.add(Forge.baseUrl(baseUrl));
        if (service.exposeErrors()) options.add(Forge.exposeErrors());
        var registry = Forge.service(resolve(service.name()), options.toArray(Forge.ServiceOption[]::new));
        entries(ForgeCommand.class, registry::command);
        entries(ForgeQuery.class, registry::query);
        return registry;
    }

    private String resolve(String text) { return factory.resolveEmbeddedValue(text); }

    private interface Registration { void add(String name, ForgeHandler<?> handler, Forge.EntryOption... options); }

    /** Adds the methods with an annotation in the order of names, as Java defines none for methods and flags. */
    private void entries(Class<? extends Annotation> annotation, Registration registration) {
        Map<Method, AnnotationAttributes> methods = MethodIntrospector.selectMethods(type,
            (Method method) -> AnnotatedElementUtils.findMergedAnnotationAttributes(method, annotation, false, false));
        methods.forEach((method, flags) -> flags.replace("name", "", method.getName()));
        methods.entrySet().stream().sorted(Comparator.comparing(it -> it.getValue().getString("name"))).forEach(it -> {
            String name = (String) it.getValue().remove("name");
            var flags = new TreeMap<>(it.getValue()).entrySet();
            var options = flags.stream().map(flag -> option(flag.getKey(), flag.getValue()));
            registration.add(name, handler(it.getKey()), options.toArray(Forge.EntryOption[]::new));
        });
    }

    /** Flags have the names of the manifest's members. Empty ones are left out. */
    private static Forge.EntryOption option(String name, Object value) {
        return entry -> {
            if (value instanceof Boolean set && set) entry.put(name, true);
            if (value instanceof String[] effects && effects.length > 0) Forge.effects(effects).apply(entry);
            if (!(value instanceof String text) || text.isEmpty()) return;
            if (name.equals("inputSchema")) Forge.inputSchema(text).apply(entry);
            else entry.put(name, text);
        };
    }

    private ForgeHandler<?> handler(Method method) {
        List<Class<?>> inputs = Stream.<Class<?>>of(method.getParameterTypes())
            .filter(parameter -> parameter != ForgeContext.class).toList();
        boolean plain = Stream.of(method.getGenericParameterTypes()).allMatch(Class.class::isInstance);
        if (inputs.size() > 1 || method.getParameterCount() > inputs.size() + 1 || !plain) {
            throw new IllegalStateException(method
                + ": parameters of an entry are one input without type parameters and one ForgeContext at most");
        }
        if (factory.containsSingleton(bean)) invocable(method, factory.getBean(bean));
        Class<?> input = inputs.isEmpty() ? EmptyInput.class : inputs.get(0);
        return Forge.handle(input, (args, context) -> call(method, args, context));
    }

    private Object call(Method method, Object input, ForgeContext context) throws Exception {
        Object target = factory.getBean(bean);
        Object[] arguments = Stream.of(method.getParameterTypes())
            .map(parameter -> parameter == ForgeContext.class ? context : input).toArray();
        try {
            return invocable(method, target).invoke(target, arguments);
        } catch (InvocationTargetException error) {
            ReflectionUtils.rethrowException(error.getTargetException());
            throw new AssertionError("rethrown above", error);
        }
    }

    /** @throws IllegalStateException if the bean is a proxy that does not have the method */
    private static Method invocable(Method method, Object target) {
        Method invocable = AopUtils.selectInvocableMethod(method, target.getClass());
        ReflectionUtils.makeAccessible(invocable);
        return invocable;
    }
}

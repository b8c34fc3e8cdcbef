package forge.external.spring;

import forge.external.ForgeRegistry;
import java.io.IOException;
import org.springframework.beans.factory.BeanFactoryUtils;
import org.springframework.beans.factory.config.BeanFactoryPostProcessor;
import org.springframework.beans.factory.config.ConfigurableListableBeanFactory;
import org.springframework.beans.factory.support.AbstractBeanDefinition;
import org.springframework.beans.factory.support.BeanDefinitionBuilder;
import org.springframework.beans.factory.support.BeanDefinitionRegistry;
import org.springframework.web.servlet.handler.SimpleUrlHandlerMapping;

/**
 * Adds the {@link ForgeRegistry} of the annotated service, unless the application defines one, and its routes. Both
 * come behind all other definitions, so that the application's are known and the service is there. No
 * {@code @Configuration}: that would need a subclass proxy.
 */
public final class ForgeAutoConfiguration implements BeanFactoryPostProcessor {
    @Override
    public void postProcessBeanFactory(ConfigurableListableBeanFactory factory) {
        var definitions = (BeanDefinitionRegistry) factory;
        String[] own = BeanFactoryUtils.beanNamesForTypeIncludingAncestors(factory, ForgeRegistry.class, true, false);
        if (own.length == 0) add(definitions, "forgeRegistry", "registry");
        add(definitions, "forgeRoutes", "routes");
    }

    /** Adds a bean that a static method of this class makes, from other beans. */
    private static void add(BeanDefinitionRegistry definitions, String name, String method) {
        var definition = BeanDefinitionBuilder.rootBeanDefinition(ForgeAutoConfiguration.class, method)
            .setAutowireMode(AbstractBeanDefinition.AUTOWIRE_CONSTRUCTOR);
        definitions.registerBeanDefinition(name, definition.getBeanDefinition());
    }

    static ForgeRegistry registry(ConfigurableListableBeanFactory factory) {
        return AnnotatedService.find(factory).registry();
    }

    static SimpleUrlHandlerMapping routes(ForgeRegistry registry) throws IOException, NoSuchMethodException {
        return new ForgeController(registry).routes();
    }
}

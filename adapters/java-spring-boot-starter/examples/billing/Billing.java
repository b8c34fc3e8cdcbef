import forge.external.ForgeContext;
import forge.external.ForgeException;
import forge.external.spring.ForgeCommand;
import forge.external.spring.ForgeExternalService;
import forge.external.spring.ForgeQuery;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;

/** Invoices in memory. Each tenant sees its own. */
@ForgeExternalService(name = "billing", framework = "spring-mvc")
public class Billing {
    record CreateInvoiceInput(String title, long amountCents) {}
    record Invoice(String id, String tenantId, String title, long amountCents, String createdBy) {}

    private final List<Invoice> invoices = new CopyOnWriteArrayList<>();

    @ForgeCommand(policy = "billing.manage", tenantScoped = true, needsApproval = true, inputSchema = """
        {"type": "object", "required": ["title"], "properties": {"title": {"type": "string"}}}""")
    public synchronized Invoice createInvoice(CreateInvoiceInput input, ForgeContext context) {
        if (input.title() == null || input.title().isBlank()) {
            throw new ForgeException("INVOICE_TITLE_MISSING", "an invoice needs a title");
        }
        String id = "inv_" + (invoices.size() + 1);
        var invoice = new Invoice(id, context.tenantId(), input.title(), input.amountCents(), context.userId());
        invoices.add(invoice);
        return invoice;
    }

    @ForgeQuery(policy = "billing.manage", tenantScoped = true)
    public Map<String, List<Invoice>> listInvoices(ForgeContext context) {
        String tenant = String.valueOf(context.tenantId());
        return Map.of("invoices",
            invoices.stream().filter(it -> tenant.equals(String.valueOf(it.tenantId()))).toList());
    }
}

package printer

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/util/printable"
)

// Services prints Services in human-readable form.
func Services(out io.Writer, list *api.Services, namespace string, wide bool) error {
	list = printable.Strings(list)
	if len(list.Services) == 0 {
		where := "in namespace " + printable.Escape(namespace)
		if namespace == "" {
			where = "in any namespace"
		}
		_, err := fmt.Fprintf(out, "No Services %s; -n NAMESPACE selects another one, -A all.\n", where)
		return err
	}
	w := NewTable(out)
	if namespace == "" {
		fmt.Fprint(w, "NAMESPACE\t")
	}
	fmt.Fprint(w, "SERVICE\tPOLICY\tFRONTENDS\tENDPOINTS\tDRAINING\tSTATE")
	if wide {
		fmt.Fprint(w, "\tADDRESSES")
	}
	fmt.Fprintln(w)
	for i := range list.Services {
		s := &list.Services[i]
		if namespace == "" {
			fmt.Fprintf(w, "%s\t", s.Namespace)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%s", s.Name, cmp.Or(s.Policy, "-"), len(s.Frontends), s.Endpoints, s.Draining, serviceState(s))
		if wide {
			fmt.Fprintf(w, "\t%s", strings.Join(s.Frontends, " "))
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

// serviceState says what is wrong with a Service.
func serviceState(s *api.ServiceOverview) string {
	var out []string
	if s.Failing {
		out = append(out, "policy fails")
	}
	if s.Refused {
		out = append(out, "annotation refused")
	}
	if s.Omitted > 0 {
		out = append(out, "degraded")
	}
	if s.Endpoints == 0 && len(s.Frontends) > 0 {
		out = append(out, "no endpoints")
	}
	return cmp.Or(strings.Join(out, ", "), "ok")
}

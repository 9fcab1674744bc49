package printer

import (
	"fmt"
	"io"
	"strings"

	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/util/printable"
)

// shadowText says how a shadow compares with what is in force.
func shadowText(s *api.Shadow) string {
	var out []string
	if s.Divergence != nil {
		out = append(out, divergenceText(*s.Divergence))
	}
	if s.Failing {
		out = append(out, "it fails")
	}
	if s.Pending {
		out = append(out, "it has not answered yet")
	}
	if len(out) == 0 {
		return "nothing to compare"
	}
	return strings.Join(out, "; ")
}

func divergenceText(share float64) string {
	return fmt.Sprintf("%.1f %% of new connections would go elsewhere", 100*share)
}

// printPoolShadow prints the comparison of a pool; nil: its policy has no shadow.
func printPoolShadow(w io.Writer, s *api.PoolShadow) {
	if s == nil {
		return
	}
	if s.Divergence != nil {
		fmt.Fprintf(w, "\n  shadow: %s", divergenceText(*s.Divergence))
	}
	if s.Pending != nil {
		fmt.Fprintf(w, "\n  shadow: %s", pendingText(s.Pending))
	}
	if s.Error != "" {
		fmt.Fprintf(w, "\n  shadow: error: %s", s.Error)
	}
}

// maxShadows bounds how many Services the text of a plan lists.
const maxShadows = 20

// Shadows prints the Services that diverge the most from the shadows of their policies.
func Shadows(w io.Writer, list []api.ServiceShadow) {
	if len(list) == 0 {
		return
	}
	fmt.Fprintf(w, "\n# shadows: Services that diverge the most from what is in force\n")
	for i := range list[:min(len(list), maxShadows)] {
		s := &list[i]
		fmt.Fprintf(w, "# %s: policy %s: %s\n", printable.Escape(s.Service), printable.Escape(s.Policy), shadowText(&s.Shadow))
	}
	if more := len(list) - maxShadows; more > 0 {
		fmt.Fprintf(w, "# and %d more Services\n", more)
	}
}

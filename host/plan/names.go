package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The words of the text and JSON forms.
var (
	kindNames       = []string{"ClusterIP", "ExternalIP", "LoadBalancer", "NodePort"}
	verdictNames    = []string{"forward", "reject", "drop"}
	phaseNames      = []string{"active", "draining"}
	masqueradeNames = []string{"never", "outside", "always", "from-node"}
	balanceNames    = []string{"random", "round-robin", "source-hash", "least-connections"}
)

func (k Kind) String() string       { return word(kindNames, k, "kind") }
func (v Verdict) String() string    { return word(verdictNames, v, "verdict") }
func (p Phase) String() string      { return word(phaseNames, p, "phase") }
func (m Masquerade) String() string { return word(masqueradeNames, m, "masquerade") }
func (b Balance) String() string    { return word(balanceNames, b, "balance") }

// word names a value; one that has no name shows its number, so that an error about it can be printed.
func word[T ~uint8](names []string, v T, what string) string {
	if int(v) < len(names) {
		return names[v]
	}
	return what + "(" + strconv.Itoa(int(v)) + ")"
}

// value is the inverse of word.
func value[T ~uint8](names []string, s, what string) (T, error) {
	if i := slices.Index(names, s); i >= 0 {
		return T(i), nil
	}
	return 0, fmt.Errorf("%s %q: want one of %s", what, s, strings.Join(names, ", "))
}

package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The names in the text and JSON forms.
var (
	kindNames       = []string{"ClusterIP", "ExternalIP", "LoadBalancer", "NodePort"}
	verdictNames    = []string{"forward", "reject", "drop"}
	phaseNames      = []string{"active", "draining"}
	masqueradeNames = []string{"never", "outside", "always", "from-node"}
	balanceNames    = []string{"random", "round-robin", "source-hash", "least-connections"}
)

func (k Kind) String() string       { return nameOf(kindNames, k, "kind") }
func (v Verdict) String() string    { return nameOf(verdictNames, v, "verdict") }
func (p Phase) String() string      { return nameOf(phaseNames, p, "phase") }
func (m Masquerade) String() string { return nameOf(masqueradeNames, m, "masquerade") }
func (b Balance) String() string    { return nameOf(balanceNames, b, "balance") }

// nameOf returns the name of a value, or its number if it has no name, for use in errors.
func nameOf[T ~uint8](names []string, v T, what string) string {
	if int(v) < len(names) {
		return names[v]
	}
	return what + "(" + strconv.Itoa(int(v)) + ")"
}

// parseName is the inverse of nameOf.
func parseName[T ~uint8](names []string, s, what string) (T, error) {
	if i := slices.Index(names, s); i >= 0 {
		return T(i), nil
	}
	return 0, fmt.Errorf("%s %q: want one of %s", what, s, strings.Join(names, ", "))
}

// MarshalText returns the name.
func (k Kind) MarshalText() ([]byte, error) { return marshalName(kindNames, k, "kind") }

// MarshalText returns the name.
func (v Verdict) MarshalText() ([]byte, error) { return marshalName(verdictNames, v, "verdict") }

// MarshalText returns the name.
func (p Phase) MarshalText() ([]byte, error) { return marshalName(phaseNames, p, "phase") }

// MarshalText returns the name.
func (m Masquerade) MarshalText() ([]byte, error) {
	return marshalName(masqueradeNames, m, "masquerade")
}

// MarshalText returns the name.
func (b Balance) MarshalText() ([]byte, error) { return marshalName(balanceNames, b, "balance") }

// UnmarshalText parses a name.
func (k *Kind) UnmarshalText(s []byte) (err error) {
	*k, err = parseName[Kind](kindNames, string(s), "kind")
	return err
}

// UnmarshalText parses a name.
func (v *Verdict) UnmarshalText(s []byte) (err error) {
	*v, err = parseName[Verdict](verdictNames, string(s), "verdict")
	return err
}

// UnmarshalText parses a name.
func (p *Phase) UnmarshalText(s []byte) (err error) {
	*p, err = parseName[Phase](phaseNames, string(s), "phase")
	return err
}

// UnmarshalText parses a name.
func (m *Masquerade) UnmarshalText(s []byte) (err error) {
	*m, err = parseName[Masquerade](masqueradeNames, string(s), "masquerade")
	return err
}

// UnmarshalText parses a name.
func (b *Balance) UnmarshalText(s []byte) (err error) {
	*b, err = parseName[Balance](balanceNames, string(s), "balance")
	return err
}

func marshalName[T ~uint8](names []string, v T, what string) ([]byte, error) {
	if int(v) >= len(names) {
		return nil, fmt.Errorf("%s %d has no name", what, v)
	}
	return []byte(names[v]), nil
}

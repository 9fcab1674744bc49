package plan

// The words of the text and JSON forms.
var (
	kindNames       = []string{"ClusterIP", "ExternalIP", "LoadBalancer", "NodePort"}
	verdictNames    = []string{"forward", "reject", "drop"}
	phaseNames      = []string{"active", "warming", "draining"}
	masqueradeNames = []string{"never", "outside", "always", "from-node"}
	balanceNames    = []string{"random", "round-robin", "source-hash", "least-connections"}
)

func (k Kind) String() string       { return kindNames[k] }
func (v Verdict) String() string    { return verdictNames[v] }
func (p Phase) String() string      { return phaseNames[p] }
func (m Masquerade) String() string { return masqueradeNames[m] }
func (b Balance) String() string    { return balanceNames[b] }

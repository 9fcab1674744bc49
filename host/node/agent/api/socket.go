package api

// DefaultSocket is the path of the state socket if none is configured.
const DefaultSocket = "/run/sluice/sluice.sock"

// LogTail is the last lines of an agent's log.
type LogTail struct {
	Lines string `json:"lines"`
}

// Audience returns the audience of tokens for the state API of a node. A token is valid for one node, so that who gets hold of it
// there cannot use it elsewhere.
func Audience(node string) string { return "sluice.dev/node/" + node }

// Name is the name of an object.
type Name struct{ Namespace, Name string }

func (n Name) String() string { return n.Namespace + "/" + n.Name }

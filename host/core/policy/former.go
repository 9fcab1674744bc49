package policy

import "fmt"

// FormerPlugin returns what has become of a plugin that sluice had under another name, for the end of an error, "" for any other
// name.
func FormerPlugin(name string) string {
	now := map[string][2]string{
		"zone-spill": {"locality", ""}, "failover": {"locality", " with mode: priority"},
		"slow-start": {"lifecycle", " with the section warm"}, "staged-drain": {"lifecycle", " with the section drain"},
	}[name]
	if now[0] == "" {
		return ""
	}
	return fmt.Sprintf(": it is plugin %q now%s", now[0], now[1])
}

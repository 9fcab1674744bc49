package argocd

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	lua "github.com/yuin/gopher-lua"
)

// value converts what encoding/json decodes, as Argo CD does.
func value(l *lua.LState, v any) lua.LValue {
	switch v := v.(type) {
	case map[string]any:
		t := l.NewTable()
		for k, e := range v {
			t.RawSetString(k, value(l, e))
		}
		return t
	case []any:
		t := l.NewTable()
		for _, e := range v {
			t.Append(value(l, e))
		}
		return t
	case string:
		return lua.LString(v)
	case float64:
		return lua.LNumber(v)
	}
	return lua.LNil
}

// TestHealth runs the health check on statuses that the controller writes (host/controller).
func TestHealth(t *testing.T) {
	script, err := os.ReadFile("health.lua")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ object, health, message string }{
		"new":                  {`{"metadata": {"generation": 1}}`, "Progressing", "waiting for sluice controller"},
		"of an older spec":     {`{"metadata": {"generation": 2}, "status": {"observedGeneration": 1, "conditions": [{"type": "Programmed", "status": "True"}]}}`, "Progressing", "waiting"},
		"in force":             {conditions(`"Accepted", "True", "Accepted", ""`, `"Programmed", "True", "Programmed", "in force on 3 of 3 nodes"`), "Healthy", "in force on 3 of 3 nodes"},
		"nodes have to report": {conditions(`"Programmed", "False", "Reconciling", ""`, `"Reconciling", "True", "Reconciling", "1 has not reported it"`), "Progressing", "1 has not reported it"},
		"not valid":            {conditions(`"Accepted", "False", "Invalid", ""`, `"Stalled", "True", "Invalid", "spec.plugins[0].settings.x"`), "Degraded", "Invalid: spec.plugins[0].settings.x"},
		"not signed":           {conditions(`"Resolved", "False", "SignatureInvalid", "no signature"`, `"Programmed", "Unknown", "Unused", ""`), "Degraded", "SignatureInvalid: no signature"},
		"unused":               {conditions(`"Resolved", "True", "Resolved", ""`, `"Programmed", "Unknown", "Unused", "no policy uses the plugin"`), "Healthy", "no policy uses the plugin"},
		"overridden":           {conditions(`"Accepted", "True", "Accepted", ""`, `"Programmed", "False", "Overridden", "ClusterServicePolicy all overrides it"`), "Healthy", "overrides"},
	} {
		var object any
		if err := json.Unmarshal([]byte(c.object), &object); err != nil {
			t.Fatal(err)
		}
		l := lua.NewState()
		l.SetGlobal("obj", value(l, object))
		if err := l.DoString(string(script)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, ok := l.Get(-1).(*lua.LTable)
		if !ok {
			t.Fatalf("%s: it returns no table", name)
		}
		health, message := got.RawGetString("status").String(), got.RawGetString("message").String()
		if health != c.health || !strings.Contains(message, c.message) {
			t.Errorf("%s: %s, %q; want %s, %q", name, health, message, c.health, c.message)
		}
		l.Close()
	}
}

// conditions returns an object with conditions of type, status, reason and message.
func conditions(list ...string) string {
	var out []string
	for _, c := range list {
		p := strings.Split(c, ", ")
		out = append(out, `{"type": `+p[0]+`, "status": `+p[1]+`, "reason": `+p[2]+`, "message": `+strings.Join(p[3:], ", ")+`}`)
	}
	return `{"metadata": {"generation": 1}, "status": {"observedGeneration": 1, "conditions": [` + strings.Join(out, ", ") + `]}}`
}

package hosts

import (
	"embed"
	"path"
	"regexp"
	"strconv"
	"strings"
)

//go:embed guests/*.wat hostile/*.wat
var modules embed.FS

var (
	repetition = regexp.MustCompile(`@(\d+) ([^@]*)@`)
	importLine = regexp.MustCompile(`(?m)^;; IMPORT (.*)$`)
	directive  = regexp.MustCompile(`(?m)^ *;; (load|decide|settings|limit|missing|always|role)(?:: (.*))?$`)
)

// Complete returns a complete module in the text format. "@N TEXT@" is TEXT, repeated N times. A text that is not a module is inserted into
// guests/base.wat, which calls its function $evil in decisions for port 666, or in all if it has the line ";; always"; lines that begin with
// ";; IMPORT" go before everything else, and the line ";; role: N" sets the role.
func Complete(text string) string {
	text = repetition.ReplaceAllStringFunc(text, func(s string) string {
		n, body, _ := strings.Cut(strings.Trim(s, "@"), " ")
		count, _ := strconv.Atoi(n)
		return strings.Repeat(body+" ", count)
	})
	if strings.Contains(text, "(module") {
		return text
	}
	var imports strings.Builder
	for _, m := range importLine.FindAllStringSubmatch(text, -1) {
		imports.WriteString(m[1] + "\n")
	}
	out := strings.Replace(read("guests/base.wat"), ";; EVIL", text, 1)
	out = strings.Replace(out, "(module", "(module\n"+imports.String(), 1)
	if role, ok := directives(text)["role"]; ok {
		out = strings.Replace(out, `"sluice_role") (result i32) (i32.const 3)`, `"sluice_role") (result i32) (i32.const `+role+`)`, 1)
		if role <= "2" { // it writes capacities
			out = strings.Replace(out, "(i32.load offset=36 (local.get $from))", "(i32.load offset=32 (local.get $from))", 1)
		}
	}
	if _, always := directives(text)["always"]; always {
		out = strings.Replace(out, "(i32.eq (i32.load16_u offset=52 (local.get $req)) (i32.const 666))", "(i32.const 1)", 1)
	}
	return out
}

// Guest returns a module of the folder guests.
func Guest(name string) string { return Complete(read("guests/" + name + ".wat")) }

// Stage is when a host has to refuse a hostile module.
type Stage string

// Stages.
const (
	AtLoad   Stage = "load"   // it does not load
	AtCall   Stage = "decide" // it loads, and the call for port 666 fails
	AtEither Stage = "limit"  // it is beyond a limit of sluice, which refuses it at load; elsewhere the call may fail instead
)

// HostileModule is a module that misbehaves in one way.
type HostileModule struct {
	Name     string
	Text     string // a complete module
	Stage    Stage
	AtLoad   bool   // sluice refuses it at load
	Error    string // regular expression: the error of sluice
	Settings string // "": none
	Missing  string // loads on a host that has this input
}

// Hostile returns the modules of the folder hostile, by name.
func Hostile() (out []HostileModule) {
	entries, err := modules.ReadDir("hostile")
	if err != nil {
		panic(err) // impossible: it is embedded
	}
	for _, e := range entries {
		text := read(path.Join("hostile", e.Name()))
		d := directives(text)
		m := HostileModule{Name: strings.TrimSuffix(e.Name(), ".wat"), Text: Complete(text), Settings: d["settings"], Missing: d["missing"]}
		if want, ok := d["load"]; ok {
			m.Stage, m.AtLoad, m.Error = AtLoad, true, want
		} else {
			m.Stage, m.Error = AtCall, d["decide"]
		}
		if _, ok := d["limit"]; ok {
			m.Stage = AtEither
		}
		out = append(out, m)
	}
	return out
}

// directives returns the comments of a module that say what is expected.
func directives(text string) map[string]string {
	out := map[string]string{}
	for _, m := range directive.FindAllStringSubmatch(text, -1) {
		out[m[1]] = m[2]
	}
	return out
}

func read(name string) string {
	text, err := modules.ReadFile(name)
	if err != nil {
		panic(err) // impossible: it is embedded
	}
	return string(text)
}

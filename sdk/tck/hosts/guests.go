package hosts

import (
	"cmp"
	"embed"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/manifest"
)

//go:embed guests/*.wat hostile/*.wat
var modules embed.FS

var (
	repetition = regexp.MustCompile(`@(\d+) ([^@]*)@`)
	importLine = regexp.MustCompile(`(?m)^;; IMPORT (.*)$`)
	escaped    = regexp.MustCompile(`\\x[0-9a-f]{2}`)
	directive  = regexp.MustCompile(`^ *;; (load|decide|settings|limit|missing|always|role|section|version)(?:: (.*))?$`)
)

// Complete returns a complete module in the text format. "@N TEXT@" is TEXT, repeated N times. A text that is not a module is
// inserted into guests/base.wat, which calls its function $evil in decisions for port 666, or in all if it has the line ";;
// always"; lines that begin with ";; IMPORT" go before everything else, the line ";; role: NAME" sets the role, see Describe, and
// the line ";; version: NUMBER" the version.
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
	if version, ok := directives(text)["version"]; ok {
		out = strings.Replace(out, "(i32.const 0x20001)", "(i32.const "+version+")", 1)
	}
	if role, _ := abi.ParseRole(directives(text)["role"]); role.WritesCapacity() {
		out = strings.Replace(out, "(i32.load offset=36 (local.get $from))", "(i32.load offset=32 (local.get $from))", 1)
	}
	if _, always := directives(text)["always"]; always {
		out = strings.Replace(out, "(i32.eq (i32.load16_u offset=52 (local.get $req)) (i32.const 666))", "(i32.const 1)", 1)
	}
	return out
}

// Describe appends a manifest to the module of a text: with the role of its line ";; role: NAME", or share, all inputs, and any
// settings. Lines ";; section: TEXT" are the contents of sections instead, "none" for none; \xNN in them is a byte.
func Describe(text string, module []byte) []byte {
	var contents []string
	for _, m := range directiveLines(text) {
		if m[1] == "section" && m[2] != "none" {
			contents = append(contents, escaped.ReplaceAllStringFunc(m[2], func(s string) string {
				n, _ := strconv.ParseUint(s[2:], 16, 8)
				return string([]byte{byte(n)})
			}))
		}
	}
	d := directives(text)
	if _, ok := d["section"]; !ok {
		m := manifest.Manifest{Version: manifest.Version, Title: "a test", Release: "0", Licence: "Apache-2.0", Role: cmp.Or(d["role"], "share"), Needs: manifest.Needs()}
		contents = []string{string(m.Encode())}
	}
	for _, c := range contents {
		module = manifest.AppendSection(module, []byte(c))
	}
	return module
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
func Hostile() []HostileModule { return slices.Clone(hostile()) }

var hostile = sync.OnceValue(func() (out []HostileModule) {
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
})

// directiveLines returns the matches of directive, of comments only: a module may have megabytes of code.
func directiveLines(text string) (out [][]string) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimLeft(line, " "), ";;") {
			if m := directive.FindStringSubmatch(strings.TrimSuffix(line, "\n")); m != nil {
				out = append(out, m)
			}
		}
	}
	return out
}

// directives returns the comments of a module that say what is expected.
func directives(text string) map[string]string {
	out := map[string]string{}
	for _, m := range directiveLines(text) {
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

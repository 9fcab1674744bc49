package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/host/node/agent/plugins"
	"github.com/sluice-proxy/sluice/sdk/manifest"
)

// completeSettings completes the names in the settings of a plugin, JSON text, by the manifest of the module, which is the first
// argument and a file.
func completeSettings(_ *cobra.Command, args []string, text string) ([]string, cobra.ShellCompDirective) {
	const directive = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	if len(args) == 0 || isImage(args[0]) {
		return nil, directive
	}
	module, err := plugins.ReadModuleFile(args[0])
	if err != nil {
		return nil, directive
	}
	m, err := manifest.Read(module)
	if err != nil {
		return nil, directive
	}
	quote := ""
	if strings.HasPrefix(text, "'") { // of the shell
		quote, text = "'", text[1:]
	}
	before, name, ok := nameToComplete(text)
	if !ok {
		return nil, directive
	}
	var out []string
	for i := range m.Settings {
		s := &m.Settings[i]
		if strings.HasPrefix(s.Name, name) && !strings.Contains(before, `"`+s.Name+`"`) {
			out = append(out, quote+before+`"`+s.Name+`": `+"\t"+s.Text)
		}
	}
	return out, directive
}

// nameToComplete returns what is before the name of a field at the end of a JSON object, and the beginning of the name; ok is
// false if something else is there, such as a value, or a field of an object within.
func nameToComplete(text string) (before, name string, ok bool) {
	if strings.TrimSpace(text) == "" {
		return "{", "", true
	}
	depth, last, begin := 0, byte(0), -1 // the last byte outside of strings, and where a string began
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case begin >= 0 && c == '\\':
			i++
		case c == '"' && begin < 0:
			begin = i
		case c == '"':
			begin, last = -1, '"'
		case begin >= 0 || c == ' ':
		default:
			last = c
			switch c {
			case '{', '[':
				depth++
			case '}', ']':
				depth--
			}
		}
	}
	if depth != 1 || last != '{' && last != ',' {
		return "", "", false
	}
	if begin < 0 {
		return text, "", true
	}
	return text[:begin], text[begin+1:], true
}

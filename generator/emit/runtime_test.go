package emit

import (
	"testing"

	"github.com/outboxgen/outboxgen/templates"
)

func TestFixedFilesKeepAllButTheirPackage(t *testing.T) {
	tests := []struct{ behaviour, source, want string }{
		{
			"plain",
			"package outbox\n\nvar x = \"package outbox\"\n",
			Header + "\n\npackage shop\n\nvar x = \"package outbox\"\n",
		},
		{
			"a comment in front names the package too",
			"// It is in package outbox.\n\npackage outbox // package outbox\n",
			Header + "\n\n// It is in package outbox.\n\npackage shop // package outbox\n",
		},
	}
	for _, test := range tests {
		t.Run(test.behaviour, func(t *testing.T) {
			got, err := runtimeFile("shop", templates.File{Name: "x.go", Source: []byte(test.source)})
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

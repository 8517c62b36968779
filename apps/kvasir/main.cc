// The front door: one subcommand per file.
int main() { return 0; }

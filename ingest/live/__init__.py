"""Problems from modules where users have them: in a file, in memory, in a program that runs."""
